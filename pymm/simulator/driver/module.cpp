// Modules: a "cubin" of the stand-in nvcc is a shared object, loaded from memory.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>

#include "driver.hpp"
#include "races.hpp"

namespace pymm_sim {
namespace {

std::mutex mutex;
std::set<LoadedModule*> modules;
std::set<Function*> functions;

std::size_t image_bytes(const void* image) {  // 0: not one of ours
    const auto* h = static_cast<const Elf64_Ehdr*>(image);
    if (!image || std::memcmp(h->e_ident, ELFMAG, SELFMAG) || h->e_type != ET_DYN) return 0;
    return h->e_shoff + std::size_t{h->e_shnum} * h->e_shentsize;
}

int memory_file(const void* image, std::size_t bytes) {
    int file = memfd_create("pymm-simulator-module", MFD_CLOEXEC);
    const char* from = static_cast<const char*>(image);
    for (std::size_t done = 0; file >= 0 && done < bytes;) {
        ssize_t n = write(file, from + done, bytes - done);
        if (n <= 0) return close(file), -1;
        done += static_cast<std::size_t>(n);
    }
    return file;
}

void find_segments(LoadedModule& m) {
    struct link_map* map = nullptr;
    dlinfo(m.library, RTLD_DI_LINKMAP, &map);
    m.base = map->l_addr;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* data) {
            auto& mod = *static_cast<LoadedModule*>(data);
            if (info->dlpi_addr != mod.base) return 0;
            for (int i = 0; i < info->dlpi_phnum; i++)
                if (info->dlpi_phdr[i].p_type == PT_LOAD)
                    mod.segments.emplace_back(mod.base + info->dlpi_phdr[i].p_vaddr,
                                              info->dlpi_phdr[i].p_memsz);
            return 1;
        },
        &m);
    for (auto [begin, bytes] : m.segments) allow(reinterpret_cast<void*>(begin), bytes);
}

CUresult load(void** out, const void* image) {
    if (CUresult e = guard_unsafe()) return e;
    if (!out || !image) return invalid_value;
    std::size_t bytes = image_bytes(image);
    if (!bytes) return invalid_image;
    auto m = std::make_unique<LoadedModule>();
    m->file = memory_file(image, bytes);
    if (m->file < 0) return operating_system;
    std::string path = "/proc/self/fd/" + std::to_string(m->file);
    std::lock_guard lock(mutex);
    m->library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (m->library) m->contents = static_cast<Module*>(dlsym(m->library, "pymm_module"));
    if (!m->contents) {
        std::fprintf(stderr, "pymm simulator: not a module of its nvcc: %s\n",
                     m->library ? "no pymm_module in it" : dlerror());
        if (m->library) dlclose(m->library);
        close(m->file);
        return invalid_image;
    }
    if (m->contents->architecture != 900) {  // machine code of another device
        dlclose(m->library);
        close(m->file);
        return no_binary;
    }
    find_segments(*m);
    const_cast<Module*>(m->contents)->loaded = true;
    m->context = context_serial();
    modules.insert(m.get());
    *out = m.release();
    return success;
}

LoadedModule* module_of(void* handle) {
    auto it = modules.find(static_cast<LoadedModule*>(handle));
    return it == modules.end() ? nullptr : *it;
}

}  // namespace

Function* function_of(void* handle) {
    std::lock_guard lock(mutex);
    auto it = functions.find(static_cast<Function*>(handle));
    return it == functions.end() ? nullptr : *it;
}

bool in_module(std::uintptr_t address, std::size_t bytes) {
    std::lock_guard lock(mutex);
    for (const LoadedModule* m : modules)
        for (auto [begin, size] : m->segments)
            if (address >= begin && bytes <= size && address - begin <= size - bytes) return true;
    return false;
}

std::string source_line(const void* code) {
    auto at = reinterpret_cast<std::uintptr_t>(code) - 1;  // inside the call, not behind it
    int file = -1;
    {
        std::lock_guard lock(mutex);
        for (const LoadedModule* m : modules)
            for (auto [begin, size] : m->segments)
                if (at >= begin && at - begin < size) file = m->file, at -= m->base;
    }
    if (file < 0) return "outside every module";
    char command[128], line[512] = "";
    std::snprintf(command, sizeof command, "addr2line -i -e /proc/%d/fd/%d 0x%llx 2>/dev/null",
                  getpid(), file, static_cast<unsigned long long>(at));
    std::string text;
    if (FILE* pipe = popen(command, "r")) {
        // From what is inlined to where: the first that is not a function of ours.
        while (std::fgets(line, sizeof line, pipe)) {
            const std::string place(line, std::strcspn(line, " \n"));
            if (text.empty() || text.find(".hpp:") != text.npos)
                text = place.substr(place.rfind('/') + 1);
        }
        pclose(pipe);
    }
    if (!text.empty() && text[0] != '?') return text;
    std::snprintf(line, sizeof line, "module offset 0x%llx", static_cast<unsigned long long>(at));
    return line;
}

}  // namespace pymm_sim

using namespace pymm_sim;

CU_EXPORT CUresult cuModuleLoadData(void** out, const void* image) { return load(out, image); }

CU_EXPORT CUresult cuModuleLoadDataEx(void** out, const void* image, unsigned, int*, void**) {
    return load(out, image);
}

CU_EXPORT CUresult cuModuleLoadFatBinary(void** out, const void* image) {
    return load(out, image);
}

CU_EXPORT CUresult cuModuleLoad(void** out, const char* path) {
    if (CUresult e = guard()) return e;
    if (!path) return invalid_value;
    std::ifstream file(path, std::ios::binary);
    if (!file) return file_not_found;
    std::vector<char> image((std::istreambuf_iterator<char>(file)), {});
    if (image.size() < sizeof(Elf64_Ehdr) || image_bytes(image.data()) > image.size())
        return invalid_image;
    return load(out, image.data());
}

CU_EXPORT CUresult cuModuleUnload(void* handle) {
    if (CUresult e = guard()) return e;
    if (CUresult e = settle()) return e;
    LoadedModule* m;
    {
        std::lock_guard lock(mutex);
        m = module_of(handle);
    }
    if (!m) return invalid_handle;
    settle_conflicts(m);
    std::lock_guard lock(mutex);
    for (auto& f : m->functions) functions.erase(f.get());
    modules.erase(m);
    dlclose(m->library);
    close(m->file);
    delete m;
    return success;
}

CU_EXPORT CUresult cuModuleGetFunction(void** out, void* handle, const char* name) {
    if (CUresult e = guard()) return e;
    if (!out || !name) return invalid_value;
    std::lock_guard lock(mutex);
    LoadedModule* m = module_of(handle);
    if (!m) return invalid_handle;
    const void* symbol = dlsym(m->library, name);
    for (const Kernel* k = m->contents->kernels; symbol && k; k = k->next) {
        if (k->function != symbol) continue;
        std::size_t shared = static_shared(*m->contents, *k);
        auto f = std::make_unique<Function>();
        f->kernel = k;
        f->module = m;
        f->static_shared = shared;
        f->dynamic_limit = shared < device::shared_static ? device::shared_static - shared : 0;
        f->max_threads = k->max_threads ? k->max_threads : static_cast<int>(device::max_threads);
        *out = f.get();
        functions.insert(f.get());
        m->functions.push_back(std::move(f));
        return success;
    }
    return not_found;
}

CU_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* bytes, void* handle,
                                        const char* name) {
    if (CUresult e = guard()) return e;
    if (!name) return invalid_value;
    std::lock_guard lock(mutex);
    LoadedModule* m = module_of(handle);
    if (!m) return invalid_handle;
    void* symbol = dlsym(m->library, name);
    Dl_info info;
    Elf64_Sym* entry = nullptr;
    if (!symbol || !dladdr1(symbol, &info, reinterpret_cast<void**>(&entry), RTLD_DL_SYMENT) ||
        !entry || ELF64_ST_TYPE(entry->st_info) != STT_OBJECT)
        return not_found;
    if (address) *address = reinterpret_cast<CUdeviceptr>(symbol);
    if (bytes) *bytes = entry->st_size;
    return success;
}
