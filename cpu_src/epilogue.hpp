// The epilogue of a product: C <- activation(C + bias), as in cuda_src/common/epilogue.cuh.
//
// It is applied to a block of C as soon as its sums are complete, while it is still in a near
// cache: after the last step along k of the last piece of a product. A C that is rounded gets it
// before that. Without ACTIVATION and BIAS nothing is left of it.
#include <cmath>

#ifndef ACTIVATION
#define ACTIVATION 0  // 0 none, 1 ReLU, 2 GELU, 3 GELU by its approximation with tanh, 4 SiLU
#endif
#ifndef BIAS
#define BIAS 0  // 0 none, 1 an element for each column of C, 2 for each row
#endif
#ifndef BIAS_REAL
#define BIAS_REAL OUT  // type of the bias: that of C, or of its sums
#endif

static inline Sum activated(Sum x) {
    constexpr Sum one = 1, half = 0.5;
    if (ACTIVATION == 1) return x < 0 ? Sum(0) : x;
    if (ACTIVATION == 2) return half * x * (one + std::erf(x * Sum(0.70710678118654752440)));
    if (ACTIVATION == 3)
        return half * x *
               (one + std::tanh(Sum(0.79788456080286535588) * (x + Sum(0.044715) * x * x * x)));
    if (ACTIVATION == 4) return x / (one + std::exp(-x));
    return x;
}

struct Epilogue {
    const BIAS_REAL* bias;
    bool due;

    explicit Epilogue(const Call& call)
        : bias((const BIAS_REAL*)call.bias),
          due((ACTIVATION != 0 || BIAS != 0) && call.complete) {}

    // What becomes of element (i, j).
    Sum applied(Sum x, Index i, Index j) const {
        if (!due) return x;
        return activated(BIAS == 0 ? x : x + widen(bias[BIAS == 1 ? j : i]));
    }

    // Rows i0 to i1 and columns j0 to j1 of C.
    void finish(Sum* C, Index ld, Index i0, Index i1, Index j0, Index j1) const {
        if (!due) return;
        for (Index i = i0; i < i1; i++)
            for (Index j = j0; j < j1; j++) C[i * ld + j] = applied(C[i * ld + j], i, j);
    }

    // The same rows and columns of C from their sums, which start at `sums`.
    template <class Result>
    void round(const Sum* sums, Index pitch, Result C, Index i0, Index i1, Index j0,
               Index j1) const {
        for (Index i = i0; i < i1; i++)
            for (Index j = j0; j < j1; j++) {
                auto* c = C.data + i * C.ld + j;
                const Sum x = C.alpha * sums[(i - i0) * pitch + j - j0];
                narrow(applied(C.beta == 0 ? x : x + C.beta * widen(*c), i, j), *c);
            }
    }
};
