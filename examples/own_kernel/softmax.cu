// Softmax of each row of a matrix: y[i][j] = exp(x[i][j] - max of row i) / sum of exp in row i.
//
// A block computes ROWS rows, THREADS threads each. A thread takes every THREADS-th element of its
// row. With CACHED 2 it keeps its elements in shared memory between the three passes over the row,
// else it reads x three times.

static_assert(THREADS >= 32 && (THREADS & (THREADS - 1)) == 0, "whole warps, a power of two");

struct Largest {
    static __device__ float of(float a, float b) { return fmaxf(a, b); }
};

struct Sum {
    static __device__ float of(float a, float b) { return a + b; }
};

/// One value of the values of all threads of a row, for all of them. The whole block calls it.
template <class Operation>
__device__ float reduce(float value, float* buffer) {
    buffer[threadIdx.x] = value;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            buffer[threadIdx.x] = Operation::of(buffer[threadIdx.x], buffer[threadIdx.x + half]);
        __syncthreads();
    }
    const float found = buffer[0];
    __syncthreads();  // the buffer is used again
    return found;
}

extern "C" __global__ void softmax(const float* x, float* y, int rows, int columns) {
    extern __shared__ float cache[];
    __shared__ float buffers[ROWS][THREADS];
    const long long row = (long long)blockIdx.x * ROWS + threadIdx.y;
    const int end = row < rows ? columns : 0;  // threads without a row take part in barriers
    const float* from = x + (row < rows ? row : 0) * columns;
    float* kept = cache + threadIdx.y * columns;
    float* buffer = buffers[threadIdx.y];

    float largest = -3.4e38f;
    for (int j = threadIdx.x; j < end; j += THREADS) {
        const float value = from[j];
        if (CACHED == 2) kept[j] = value;
        largest = fmaxf(largest, value);
    }
    largest = reduce<Largest>(largest, buffer);

    float sum = 0;
    for (int j = threadIdx.x; j < end; j += THREADS)
        sum += expf((CACHED == 2 ? kept[j] : from[j]) - largest);
    sum = reduce<Sum>(sum, buffer);

    for (int j = threadIdx.x; j < end; j += THREADS)
        y[row * columns + j] = expf((CACHED == 2 ? kept[j] : from[j]) - largest) / sum;
}
