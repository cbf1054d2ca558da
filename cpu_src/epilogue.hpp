// The epilogue of a product: C <- activation(C + bias), as in cuda_src/common/epilogue.cuh.
//
// It is applied to a block of C as soon as its sums are complete, while it is still in a near
// cache: after the last step along k of the last piece of a product. A bias has the type of C.
// Without ACTIVATION and BIAS the macros below leave nothing behind.

#ifndef ACTIVATION
#define ACTIVATION 0  // 0 none, 1 ReLU, 2 GELU, 3 GELU by its approximation with tanh, 4 SiLU
#endif
#ifndef BIAS
#define BIAS 0  // 0 none, 1 an element for each column of C, 2 for each row
#endif

#define EPILOGUE (ACTIVATION != 0 || BIAS != 0)

#if EPILOGUE
#include <cmath>

static inline REAL activated(REAL x) {
    constexpr REAL one = 1, half = 0.5;
    if (ACTIVATION == 1) return x < 0 ? REAL(0) : x;
    if (ACTIVATION == 2) return half * x * (one + std::erf(x * REAL(0.70710678118654752440)));
    if (ACTIVATION == 3)
        return half * x *
               (one +
                std::tanh(REAL(0.79788456080286535588) * (x + REAL(0.044715) * x * x * x)));
    if (ACTIVATION == 4) return x / (one + std::exp(-x));
    return x;
}

// Of a call that multiplies a piece of a product: the bias from its first row or column on, and
// whether the sums are complete after it.
struct Epilogue {
    const REAL* bias;
    bool complete;

    // Rows i0 to i1 and columns j0 to j1 of C.
    void finish(REAL* C, Index ld, Index i0, Index i1, Index j0, Index j1) const {
        if (!complete) return;
        for (Index i = i0; i < i1; i++)
            for (Index j = j0; j < j1; j++) {
                REAL* c = C + i * ld + j;
                *c = activated(BIAS == 0 ? *c : *c + bias[BIAS == 1 ? j : i]);
            }
    }
};

#define EPILOGUE_PARAMETER , const REAL *bias, int complete  // of gemm
#define EPILOGUE_PLACE , const Epilogue &epilogue
#define EPILOGUE_ARGUMENT , {bias, complete != 0}
#else
#define EPILOGUE_PARAMETER
#define EPILOGUE_PLACE
#define EPILOGUE_ARGUMENT
#endif
