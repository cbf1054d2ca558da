"""The experiments of the courses and projects that pymm comes from, each repeated by one command:
`python -m pymm.bench --suite NAME`. What they are is declared in `catalog`; the rest of this
folder measures.

All suites but `goals` (the run over all classes, `pymm.bench.classes`) write rows of one schema, 1.
One row is one figure: a time of one contestant on one problem, or a number.

Which experiment:
    schema, suite (`o2-sizes`), step (digest of what one request measures), of (rows of that step:
    it is whole if so many are there), time (ISO 8601), commit (of pymm's checkout, empty if
    unknown), device (slug), driver, compiler, pymm (version)
Which product:
    op (`gemm`, `syrk`), dtype, layout, m, n, k
Which contestant:
    name (`02_shared_tile`; a library: `cublas`, `cublaslt`, `numpy`, and `cublas_syrk`, which
    writes one half of a symmetric C; `sequential`: the scalar kernel of the CPU, one thread;
    `copies`: of the operands alone), variant (`fixed`: parameters that the suite gives; `default`;
    `chosen`: what matmul takes; `guarded`, `unguarded`, `writes guarded` (the store of C alone) and
    `all of C` (not one half of a symmetric C): forced; empty for the others), config (slug),
    source (digest of the kernel's text)
Which figure:
    quantity, transfer (`pageable`, `pinned`: by way of a page-locked area, `registered`:
    page-locked in place for each copy, `locked`: arrays that are page-locked for good), outcome
Times (quantity `kernel`: on the device, caches cold on a GPU, warm on a CPU; `total`: A and B to
the device, kernel, C back, by the host's clock; `to_device`, `to_host`: the copies alone, by the
host's clock):
    seconds (median), mean (seconds), spread (interquartile range / median), rounds, void (samples
    taken again because of host launch delay), gflops (10^9 operations that the problem needs, of a
    symmetric one half, per second of `seconds`), peak (part of the device's peak rate), ratio (time
    of the fastest library that writes all of C / this time, kernel times only), speedup (time of
    `sequential` / this time), error (largest deviation / its bound), error_inf (infinity norm of C
    - C_sequential / that of C_sequential)
Numbers (any other quantity: `occupancy`, `global_loads`, ...):
    value, unit
Checks (quantity `check`; outcome `ok` if the kernel failed exactly where it lacks guards):
    value (`TEST PASS`, `TEST FAIL`), detail (first wrong element)
Circumstances:
    registers, spills (bytes of a thread), shared (bytes of a block), sm_mhz, memory_mhz, power_w,
    temperature_c, throttle, detail

outcome is `ok`; `wrong` (detail has the first wrong element), or another failure as a trial has
them; `left_out` (one run would take longer than allowed: detail says how long); `not_applicable` (a
part of the experiment that this device cannot have, quantity empty: detail says why).
"""
