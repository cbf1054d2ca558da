// The table of a module's kernels and shared variables, and what translate.py writes into the text.
#pragma once

extern "C" __attribute__((visibility("default"))) pymm_sim::Module pymm_module;

namespace pymm_sim {

// Run while the module is loaded, before anything may be checked.
struct SetArchitecture {
    SetArchitecture(int architecture);
};
struct AddShared {
    SharedVariable variable;
    AddShared(SharedVariable v);
};
struct AddKernel {
    Kernel kernel;
    AddKernel(Kernel k);
};

// `Place` is a class local to the declaration, so that every declaration, in every instance of a
// template, has a variable of its own.
template <class Type, unsigned dimension>
constexpr unsigned extent = static_cast<unsigned>(std::extent_v<Type, dimension>);

template <class Type, std::size_t alignment, class Place>
struct Shared {
    static AddShared entry;
};
template <class Type, std::size_t alignment, class Place>
AddShared Shared<Type, alignment, Place>::entry{SharedVariable{
    Place::name(), Place::owner(), sizeof(Type),
    alignment > alignof(Type) ? alignment : alignof(Type),
    sizeof(std::remove_all_extents_t<Type>), static_cast<unsigned>(std::rank_v<Type>),
    {extent<Type, 0>, extent<Type, 1>, extent<Type, 2>, extent<Type, 3>},
    0, nullptr}};

// Unchecked: the table of addresses is the driver's own memory.
PYMM_SIM_UNCHECKED inline void* shared_address(int index) { return self().shared[index]; }

template <class Type, std::size_t alignment, class Place>
inline Type& shared() {
    static_assert(std::is_trivially_destructible_v<Type>,
                  "a __shared__ variable may not have a destructor");
    int index = Shared<Type, alignment, Place>::entry.variable.index;
    return *static_cast<Type*>(shared_address(index));
}

// `extern __shared__ Type name[];` outside every function.
template <class Type>
struct DynamicShared {
    operator std::remove_extent_t<Type>*() const {
        return static_cast<std::remove_extent_t<Type>*>(self().dynamic_shared);
    }
};

template <class Type>
inline std::remove_extent_t<Type>* dynamic_shared() {
    return static_cast<std::remove_extent_t<Type>*>(self().dynamic_shared);
}

// Where the buffer of arguments begins in the constant bank of sm_90.
constexpr std::size_t PARAMETERS_AT = 0x210;

// Where each parameter lies in the buffer of arguments. Alignments count from the beginning of the
// constant bank, so a parameter with one of more than 16 bytes is not where a C structure has it.
template <class... Types>
struct Layout {
    static constexpr std::size_t count = sizeof...(Types);
    Parameter parameters[count + 1] = {};
    std::size_t bytes = 0;
    constexpr Layout() {
        std::size_t i = 0;
        ((bytes = (PARAMETERS_AT + bytes + alignof(Types) - 1) / alignof(Types) * alignof(Types)
                  - PARAMETERS_AT,
          parameters[i] = {bytes, sizeof(Types)}, i++, bytes += sizeof(Types)), ...);
    }
};

template <class... Types>
struct Caller {
    static constexpr Layout<Types...> layout{};
    template <std::size_t... I>
    PYMM_SIM_UNCHECKED static void call(const Kernel& k, const char* a, std::index_sequence<I...>) {
        auto function = reinterpret_cast<void (*)(Types...)>(const_cast<void*>(k.function));
        function(*reinterpret_cast<const Types*>(a + layout.parameters[I].offset)...);
    }
    // The buffer is the host's, which the module's own `memcpy` refuses to read; without AVX-512
    // g++ passes large arguments by it. So they are passed from the thread's stack.
    PYMM_SIM_UNCHECKED static void invoke(const Kernel& k, const char* arguments) {
        alignas(64) char bank[PARAMETERS_AT + layout.bytes];
        char* const own = bank + PARAMETERS_AT;
        for (std::size_t i = 0; i < layout.bytes; i++) own[i] = arguments[i];
        call(k, own, std::index_sequence_for<Types...>{});
    }
};

template <class... Types>
PYMM_SIM_UNCHECKED Kernel describe(void (*function)(Types...), const char* name,
                                   int max_threads = 0, int = 0, int = 0) {
    using Call = Caller<Types...>;
    return Kernel{name, reinterpret_cast<const void*>(function), Call::invoke,
                  Call::layout.parameters, static_cast<unsigned>(sizeof...(Types)),
                  static_cast<unsigned>(Call::layout.bytes), max_threads, {0, 0, 0}, nullptr};
}
PYMM_SIM_UNCHECKED inline Kernel in_clusters(Kernel kernel, unsigned x, unsigned y = 1,
                                             unsigned z = 1) {
    kernel.cluster[0] = x, kernel.cluster[1] = y, kernel.cluster[2] = z;
    return kernel;
}

}  // namespace pymm_sim
