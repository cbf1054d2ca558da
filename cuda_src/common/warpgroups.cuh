// Registers of a thread in a block of CONSUMERS warpgroups that multiply and one that loads, which
// gives most of its registers to the others (setmaxnreg). All together must not exceed what the
// block is launched with, 65536 / THREADS rounded down to a multiple of 8, or the block waits for
// ever.

constexpr int PRODUCER_REGISTERS = CONSUMERS <= 2 ? 40 : CONSUMERS == 3 ? 32 : 64;
constexpr int CONSUMER_REGISTERS = CONSUMERS <= 2 ? 232 : CONSUMERS == 3 ? 160 : 104;
