// The epilogue of a product, in one pass with the store of C:
//
//     C <- activation(alpha sum + beta C + bias)
//
// ACTIVATION and BIAS are chosen when a kernel is compiled. Without them the macros below leave
// nothing behind, and the kernel is the same as if they were not there. Where k is split the
// epilogue comes after the last sum: in the block that adds up the parts, or in `combine`.

#ifndef ACTIVATION
#define ACTIVATION 0  // 0 none, 1 ReLU, 2 GELU, 3 GELU by its approximation with tanh, 4 SiLU
#endif
#ifndef BIAS
#define BIAS 0  // 0 none, 1 an element for each column of C, 2 for each row
#endif
#ifndef BIAS_REAL
#define BIAS_REAL float  // element type of the bias
#endif

#define EPILOGUE (ACTIVATION != 0 || BIAS != 0)

#if EPILOGUE

__device__ __forceinline__ float read_bias(const float* bias) { return *bias; }
__device__ __forceinline__ double read_bias(const double* bias) { return *bias; }
template <class HALF>
__device__ __forceinline__ float read_bias(const HALF* bias) {
    return widen(*bias);
}

// Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415: GELU is x Phi(x), with Phi
// the normal distribution function, and section 2 gives the approximation and SiLU, x / (1 + e^-x).
// NaN stays NaN, and minus infinity gives NaN where a factor is zero, as the formulas do.
template <class T>
__device__ __forceinline__ T activated(T x) {
    if (ACTIVATION == 1) return x < T(0) ? T(0) : x;
    if (ACTIVATION == 2) return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440)));
    if (ACTIVATION == 3)
        return T(0.5) * x *
               (T(1) + tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)));
    if (ACTIVATION == 4) return x / (T(1) + exp(-x));
    return x;
}

// A bias of `length` elements. A tile may stick out of C: elements beyond its end get no bias, and
// are not stored.
struct Epilogue {
    const BIAS_REAL* bias;
    long long length;

    // An element of alpha sum + beta C as it is stored.
    template <class T>
    __device__ __forceinline__ T operator()(T x, unsigned row, unsigned column) const {
        if (BIAS != 0) {
            const unsigned place = BIAS == 1 ? column : row;
            if (place < static_cast<unsigned>(length)) x += read_bias(bias + place);
        }
        return activated(x);
    }
};

// For the parameters of a kernel or a function; for the members of a struct; for their arguments,
// where a struct may have no epilogue a pointer; and an element as it is stored.
#define EPILOGUE_PARAMETER , Epilogue epilogue
#define EPILOGUE_PLACE , const Epilogue &epilogue, unsigned row, unsigned column
#define EPILOGUE_MEMBER Epilogue epilogue;
#define EPILOGUE_ARGUMENT , epilogue
#define EPILOGUE_POINTER , &epilogue
#define EPILOGUE_AT(row, column) , epilogue, row, column
#define FINISHED(x, row, column) epilogue(x, row, column)

#else

#define EPILOGUE_PARAMETER
#define EPILOGUE_MEMBER
#define EPILOGUE_ARGUMENT
#define EPILOGUE_POINTER
#define EPILOGUE_PLACE
#define EPILOGUE_AT(row, column)
#define FINISHED(x, row, column) x

#endif
