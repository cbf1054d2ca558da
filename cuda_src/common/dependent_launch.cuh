// The launches of one product, each of which may begin before the one before it has ended
// (programmatic dependent launch, sm_90): what a launch costs at its start, and the way from one
// grid to the next, then passes while the one before still works.
//
//     repack   | next may begin | copies ...              | ends
//     gemm          | barriers, maps | waits for repack ..| fetches ... | ends
//     combine                  | waits for gemm ......................  | adds up
//
// The blocks of a launch come when all blocks of the one before run or have ended, so they never
// take the place of one of those; they wait where there is room.
//
// Why that is right. `griddepcontrol_wait` returns when the launch before has ended and all that
// it wrote is seen (PTX ISA 9.0, "griddepcontrol"). Every launch but the first of a product waits
// in every block before it reads what another launch of that product made, and so ends after the
// one before it has ended. The first is an ordinary launch: it begins when everything before it in
// the stream has ended, the last launch of another product and hence all of that. So no two
// products overlap; within one, launches write different memory; and who does not read what
// another launch of the product wrote need not wait: those threads of gemm that multiply read
// shared memory, which a thread that has waited has filled, and C from before the product. One
// exception: the verdict on a split (common/split_check.cuh).

#ifndef SPLIT
#define SPLIT 1  // parts that k is split into
#endif
#ifndef FILL
#define FILL 0  // what of a square C is kept: 0 all
#endif
#ifndef GATE
#define GATE 0  // 1: runs if the split is exact enough, 2: runs if it is not, 0: always
#endif

#ifndef PYMM_SIMULATOR

__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Nothing happens where no launch before is under way, or where the next is an ordinary one.
template <bool FOLLOWED = (!GATE && (SPLIT > 1 || FILL != 0))>
__device__ __forceinline__ void griddepcontrol_wait() {
    if (FOLLOWED) griddepcontrol_launch_dependents();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#else

// The simulator runs one launch after another, and only sees to it that who may begin early waits.
template <bool FOLLOWED = false>
__device__ void griddepcontrol_wait() {
    pymm_sim::self().calls->wait_for_launch();
}
__device__ void griddepcontrol_launch_dependents() {}

#endif
