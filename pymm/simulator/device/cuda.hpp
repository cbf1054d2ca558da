// CUDA C++ for g++: included before every kernel text, and precompiled.
// Names here are spelled so that a kernel's -D macros (MB, TA, REAL, ...) do not meet them.
#pragma once
#include <cassert>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <math.h>
#include <stdlib.h>
#include <tuple>
#include <type_traits>
#include <utility>

#define PYMM_SIMULATOR 1
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

// __global__, __shared__ and __launch_bounds__ stay in the text: translate.py rewrites them.
#define __device__ __attribute__((visibility("default")))  // a variable is asked for by name
#define __host__
#define __constant__ __attribute__((visibility("default"), used))
#define __managed__ __attribute__((visibility("default"), used))
#define __grid_constant__
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __inline_hint__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))

#include "abi.hpp"
#include "checks.hpp"
#include "races.hpp"
#include "vectors.hpp"
#include "threads.hpp"
#include "warps.hpp"
#include "atomics.hpp"
#include "memory.hpp"
#include "arithmetic.hpp"
#include "hopper.hpp"
#include "module.hpp"
