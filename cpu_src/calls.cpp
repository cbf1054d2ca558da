// What Python does for a call that was made before, in compiled code: a table of products of NumPy
// arrays on the CPU (for those of a GPU, device_calls.hpp), and launches as functions that Python
// calls without ctypes.
//
// pymm/backends/compiled.py checks the layout of objects and of NumPy's arrays (ndarraytypes.h,
// PyArrayObject_fields) before it uses any of this. All functions are called with the GIL held.
//
// Compile: g++ -O2 -std=c++17 -shared -fPIC
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <initializer_list>

#include "call.hpp"
#include "device_calls.hpp"
#include "python.hpp"

namespace {

constexpr int writeable = 0x400;  // NPY_ARRAY_WRITEABLE
constexpr int max_axes = 4, alignment = 16;

struct Array {
    Object head;
    char* data;
    int axes;
    Size *shape, *strides;
    Object *base, *dtype;
    int flags;
};

// dtype, shape and strides of an array; `offset` is its address modulo `alignment`, `first` and
// `last` are the bytes that it takes, relative to its address.
struct ArraySpec {
    Object* dtype;
    Size shape[max_axes], strides[max_axes], first, last;
    int axes, writeable, offset, unused;
};

// A product of such arrays. With `makes` it is a call without `out`, for which a result has to be
// made; `out` is empty. Else it is a launch: `kernel(call)` with the addresses of a, b and out, of
// which the first two are exchanged if it is `swapped`; `same` says whether a and b are one array.
struct Product {
    ArraySpec a, b, out;
    int makes, swapped, same, unused;
    int (*kernel)(const Call*);
    Call call;
};

struct Entry {
    Product product;
    std::uint64_t hash;
    int users;  // the table, and calls that are under way
    Object *options, *owner;  // `owner`: of the kernel; with `makes` what makes a result beside a
};

constexpr std::size_t places = 4096;  // of which at most half are taken

// `failed` raises the error of a kernel. Nothing is found from the time `until` on (seconds of
// CLOCK_MONOTONIC): Python then looks at the files of configurations.
struct Table {
    Entry* entries[places];
    std::size_t taken;
    double until;
    Object *array_type, *failed;
    device::Table on_device;
};

void release(Entry* entry) {
    if (--entry->users) return;
    const Product& p = entry->product;
    Object* held[] = {p.a.dtype, p.b.dtype, p.out.dtype, entry->options, entry->owner};
    delete entry;
    for (Object* one : held)
        if (one) Py_DecRef(one);
}

// Of what tells products apart most often.
std::uint64_t hash_of(Object* dtype, int axes_a, const Size* a, int axes_b, const Size* b,
                      const Size* strides_a, const Size* strides_b, bool makes) {
    std::uint64_t hash = mixed(makes, reinterpret_cast<std::uintptr_t>(dtype));
    for (int i = 0; i < axes_a; i++) hash = mixed(hash, a[i] * 31 + strides_a[i]);
    for (int i = 0; i < axes_b; i++) hash = mixed(hash, b[i] * 31 + strides_b[i]);
    return hash;
}

bool is(const Array& array, const ArraySpec& spec) {
    if (array.dtype != spec.dtype || array.axes != spec.axes) return false;
    if (((array.flags & writeable) != 0) != spec.writeable) return false;
    for (int i = 0; i < spec.axes; i++)
        if (array.shape[i] != spec.shape[i] || array.strides[i] != spec.strides[i]) return false;
    return true;
}

bool alike(const Product& x, const Product& y) {
    return !std::memcmp(&x, &y, offsetof(Product, kernel));
}

int offset(const Array& array) {
    return reinterpret_cast<std::uintptr_t>(array.data) % alignment;
}

bool overlap(const Array& array, const ArraySpec& spec, const Array& out,
             const ArraySpec& written) {
    return out.data + written.first < array.data + spec.last
           && array.data + spec.first < out.data + written.last;
}

bool overlaps(const Product& p, const Array& a, const Array& b, const Array& out) {
    return overlap(a, p.a, out, p.out) || overlap(b, p.b, out, p.out);
}

// `out` is null for a call without it.
bool matches(const Product& p, const Array& a, const Array& b, const Array* out) {
    if (!is(a, p.a) || !is(b, p.b)) return false;
    if (!out || p.makes) return !out && p.makes;
    return is(*out, p.out) && offset(a) == p.a.offset && offset(b) == p.b.offset
           && offset(*out) == p.out.offset && (a.data == b.data) == p.same;
}

Entry* find(Table& table, const Array& a, const Array& b, const Array* out, Object* options) {
    const std::uint64_t hash =
        hash_of(a.dtype, a.axes, a.shape, b.axes, b.shape, a.strides, b.strides, !out);
    for (std::size_t i = hash % places; Entry* entry = table.entries[i]; i = (i + 1) % places)
        if (entry->hash == hash && matches(entry->product, a, b, out)
            && alike_tuples(entry->options, options))
            return entry;
    return nullptr;
}

double now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// The result; null with an error.
Object* launched(Table& table, Entry* entry, const Array& a, const Array& b, const Array& out) {
    const Product& p = entry->product;
    Call call = p.call;
    call.A = p.swapped ? b.data : a.data;
    call.B = p.swapped ? a.data : b.data;
    call.C = out.data;
    entry->users++;  // other threads may clear the table
    void* state = PyEval_SaveThread();
    const int code = p.kernel(&call);
    PyEval_RestoreThread(state);
    release(entry);
    if (code) return PyObject_CallObject(table.failed, nullptr);
    Object* result = const_cast<Object*>(&out.head);
    Py_IncRef(result);
    return result;
}

// The arguments are a, b, out, c, a bias and a tuple of the options. Returns the result; what
// `unknown` does for a call that is not known.
Object* multiply(Object* self, Object* const* arguments, Size) {
    Table& table = *static_cast<Table*>(PyLong_AsVoidPtr(self));
    Object *a = arguments[0], *b = arguments[1], *out = arguments[2];
    Object *kind = table.array_type, *bias = arguments[4], *options = arguments[5];
    if (arguments[3] != &_Py_NoneStruct || now() >= table.until) return none();
    if (a->type != kind) return device::multiply(table.on_device, a, b, out, bias, options);
    if (b->type != kind || bias != &_Py_NoneStruct) return none();
    if (out->type != kind && out != &_Py_NoneStruct) return none();
    const Array &left = *reinterpret_cast<Array*>(a), &right = *reinterpret_cast<Array*>(b);
    const Array* target = reinterpret_cast<Array*>(out);
    Object* made = nullptr;
    if (out == &_Py_NoneStruct) {
        Entry* maker = find(table, left, right, nullptr, options);
        if (!maker) return none();
        maker->users++;  // to make an array may run anything
        made = PyObject_CallFunctionObjArgs(maker->owner, a, nullptr);
        release(maker);
        if (!made) return nullptr;
        target = reinterpret_cast<Array*>(made);
    }
    Entry* entry = made && made->type != kind ? nullptr : find(table, left, right, target, options);
    if (entry && overlaps(entry->product, left, right, *target)) entry = nullptr;
    Object* result = entry ? launched(table, entry, left, right, *target) : unknown(made);
    if (made) Py_DecRef(made);
    return result;
}

Method multiply_method = {"multiply", reinterpret_cast<void*>(multiply), fast, nullptr};

// A launch on the CPU: `kernel(call)`.
struct Launch {
    int (*kernel)(const void*);
    const void* call;
};

// `self` is a tuple: the address of a `Launch`, what raises the error if it fails, and its owners.
Object* launch(Object* self, Object*) {
    const Launch& one = *static_cast<Launch*>(PyLong_AsVoidPtr(PyTuple_GetItem(self, 0)));
    void* state = PyEval_SaveThread();
    const int code = one.kernel(one.call);
    PyEval_RestoreThread(state);
    return code ? PyObject_CallObject(PyTuple_GetItem(self, 1), nullptr) : none();
}

Method launch_method = {"launch", reinterpret_cast<void*>(launch), no_arguments, nullptr};

enum Way : int { by_python, by_graph, by_kernel };
enum Check : int { nothing, no_capture, same_stream };

// A launch on a GPU, and the functions of the driver that it takes ("CUDA Driver API"). Before it,
// the context that is current must have the number `context`; `check` says what must be true of the
// stream: that it is not being captured, or that its handle means stream `number` still and that
// this is not being captured. A graph of a product of several launches waits for its `turn`.
struct DeviceLaunch {
    int way, check, in_turn, unused;
    unsigned long long context, number;
    void *stream, *graph, *function, *extra;
    const void* config;
    int (*current_context)(void**);
    int (*context_number)(void*, unsigned long long*);
    int (*is_capturing)(void*, int*);
    int (*capture_info)(void*, int*, unsigned long long*, void*, void*, void*);
    int (*stream_number)(void*, unsigned long long*);
    int (*launch_graph)(void*, void*);
    int (*launch_kernel)(const void*, void*, void**, void**);
};

bool is_here(const DeviceLaunch& one) {
    void* context = nullptr;
    unsigned long long number = 0;
    if (one.current_context(&context) || !context) return false;
    return !one.context_number(nullptr, &number) && number == one.context;
}

bool is_ready(const DeviceLaunch& one) {
    int status = 0;
    unsigned long long number = 0;
    if (one.check == no_capture) return !one.is_capturing(one.stream, &status) && !status;
    if (one.check == nothing) return true;
    // To ask a stream that is being captured for its number would end the capture.
    if (one.capture_info(one.stream, &status, &number, nullptr, nullptr, nullptr) || status)
        return false;
    return !one.stream_number(one.stream, &number) && number == one.number;
}

// The driver does not lock graphs against other threads: the GIL is kept while one is launched, and
// released for a kernel, which may have to wait for room in the queue.
int started(const DeviceLaunch& one) {
    if (one.way == by_graph) return one.launch_graph(one.graph, one.stream);
    void* state = PyEval_SaveThread();
    const int code = one.launch_kernel(one.config, one.function, nullptr, (void**)one.extra);
    PyEval_RestoreThread(state);
    return code;
}

// `self` is a tuple: the address of a `DeviceLaunch`; what makes the launch in Python, or raises
// the error of the code that it is called with; what says whether another thread has the turn.
Object* launch_device(Object* self, Object*) {
    const auto& one = *static_cast<DeviceLaunch*>(PyLong_AsVoidPtr(PyTuple_GetItem(self, 0)));
    int code = -1;
    bool ready = one.way != by_python && is_here(one) && is_ready(one);
    if (ready && one.in_turn) {
        Object* taken = PyObject_CallObject(PyTuple_GetItem(self, 2), nullptr);
        if (!taken) return nullptr;
        ready = taken == &_Py_FalseStruct;
        Py_DecRef(taken);
    }
    if (ready) code = started(one);
    if (!code) return none();
    Object* number = PyLong_FromLong(code);
    if (!number) return nullptr;
    Object* result = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 1), number, nullptr);
    Py_DecRef(number);
    return result;
}

Method device_method = {"launch", reinterpret_cast<void*>(launch_device), no_arguments, nullptr};

}  // namespace

extern "C" {

// Sizes of structures, to be compared with those of Python's side.
Size calls_size(int which) {
    const Size sizes[] = {sizeof(Object), sizeof(Array), sizeof(Product), sizeof(Launch),
                          sizeof(DeviceLaunch)};
    return sizes[which];
}

void* calls_table(Object* array_type, Object* failed) {
    Table* table = new Table{};
    for (Object* one : {array_type, failed}) Py_IncRef(one);
    table->array_type = array_type, table->failed = failed;
    return table;
}

void calls_clear(Table* table) {
    Entry* old[places];
    std::memcpy(old, table->entries, sizeof old);
    std::memset(table->entries, 0, sizeof old);
    table->taken = 0;
    for (Entry* entry : old)
        if (entry) release(entry);
    device::clear(table->on_device);
}

// The functions of the driver that say which context is current.
void calls_contexts(Table* table, void* current_context, void* context_number) {
    device::Table& own = table->on_device;
    own.current_context = reinterpret_cast<decltype(own.current_context)>(current_context);
    own.context_number = reinterpret_cast<decltype(own.context_number)>(context_number);
}

// Reads arrays of `type` from now on: `names` is a tuple, of which those that `methods` says (bits)
// are methods; `stream` is a function of value `index`, or None. False if there is no room.
int calls_reader(Table* table, Object* type, Object* names, int methods, Object* stream,
                 int index) {
    device::Table& own = table->on_device;
    const int count = int(PyTuple_Size(names));
    if (own.count == device::most_readers || count > device::most_values) return false;
    for (Object* one : {type, names, stream}) Py_IncRef(one);
    device::Reader& reader = own.readers[own.count++];
    reader.type = type, reader.count = count, reader.index = index;
    reader.stream = stream == &_Py_NoneStruct ? nullptr : stream;
    for (int i = 0; i < count; i++) {
        reader.names[i] = PyTuple_GetItem(names, i);
        reader.methods[i] = methods >> i & 1;
    }
    return true;
}

int calls_insert_device(Table* table, Object* key, const std::uint64_t* addresses, int makes,
                        int has_context, std::uint64_t context) {
    return device::insert(table->on_device, key, addresses, makes, has_context, context);
}

void calls_until(Table* table, double until) { table->until = until; }

// False if there is no room.
int calls_insert(Table* table, const Product* product, Object* options, Object* owner) {
    const Product& p = *product;
    const std::uint64_t hash = hash_of(p.a.dtype, p.a.axes, p.a.shape, p.b.axes, p.b.shape,
                                       p.a.strides, p.b.strides, p.makes);
    if (2 * table->taken >= places) return false;
    std::size_t i = hash % places;
    for (; Entry* entry = table->entries[i]; i = (i + 1) % places)
        if (entry->hash == hash && alike(entry->product, p)
            && alike_tuples(entry->options, options))
            return true;
    for (Object* one : {p.a.dtype, p.b.dtype, p.out.dtype, options, owner})
        if (one) Py_IncRef(one);
    table->entries[i] = new Entry{p, hash, 1, options, owner};
    table->taken++;
    return true;
}

Object* calls_multiply(Object* table) {
    return PyCFunction_NewEx(&multiply_method, table, nullptr);
}

Object* calls_launch(Object* self) { return PyCFunction_NewEx(&launch_method, self, nullptr); }

Object* calls_launch_device(Object* self) {
    return PyCFunction_NewEx(&device_method, self, nullptr);
}
}
