// Calls of arrays on a GPU that were made before: a table of launches by the addresses and the
// attributes of the arrays, and of what makes results by the attributes alone.
//
// Which attributes an array has is said by a reader for each type (runtime/launch_cache.py): names
// of attributes and of methods without arguments, of which the first is the address. For some types
// a function says which stream is current on the array's device.
#ifndef DEVICE_CALLS_HPP
#define DEVICE_CALLS_HPP

#include <cstdint>
#include <cstring>

#include "python.hpp"

namespace {
namespace device {

constexpr int most_readers = 8, most_values = 8, most_arrays = 4;
constexpr std::size_t places = 8192;  // of which at most half are taken

struct Reader {
    Object *type, *names[most_values], *stream;
    bool methods[most_values];
    int count, index;  // `index`: which value is that of the device, for `stream`
};

// The attributes of an array besides its address, as they are now.
struct Read {
    const Reader* reader = nullptr;
    std::uint64_t address = 0;
    Object* values[most_values] = {};
    int count = 0;

    ~Read() {
        for (int i = 0; i < count; i++) Py_DecRef(values[i]);
    }
};

// One as it was.
struct Known {
    Object *type, *values;
    std::uint64_t address;
};

// `action` is the launch of a product of a, b, out and a bias (whose type is null where there is
// none); with `makes` it makes `out` beside a. `key` is a tuple that owns all of the objects.
struct Entry {
    Known arrays[most_arrays];
    std::uint64_t hash, context;
    Object *stream, *options, *action, *key;
    int makes, has_context, users;
};

struct Table {
    Reader readers[most_readers];
    int count;
    std::size_t taken;
    Entry* entries[places];
    int (*current_context)(void**);
    int (*context_number)(void*, unsigned long long*);
};

void release(Entry* entry) {
    if (--entry->users) return;
    Object* key = entry->key;
    delete entry;
    Py_DecRef(key);
}

// Clears an Exception, so that Python makes the call; leaves others (KeyboardInterrupt). False.
bool cleared() {
    if (PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
    return false;
}

Object* value_of(Object* array, Object* name, bool method) {
    if (!method) return PyObject_GetAttr(array, name);
    Object* arguments[] = {array};
    return PyObject_VectorcallMethod(name, arguments, 1, nullptr);
}

// False for an array that cannot be read.
bool read(const Table& table, Object* array, Read& found) {
    for (int i = 0; i < table.count; i++)
        if (table.readers[i].type == array->type) found.reader = &table.readers[i];
    if (!found.reader) return false;
    const Reader& reader = *found.reader;
    for (int i = 0; i < reader.count; i++) {
        Object* value = value_of(array, reader.names[i], reader.methods[i]);
        if (!value) return cleared();
        if (i) {
            found.values[found.count++] = value;
            continue;
        }
        found.address = PyLong_AsUnsignedLongLong(value);
        Py_DecRef(value);
        if (PyErr_Occurred()) return cleared();
    }
    return true;
}

bool is(const Read& array, const Known& known) {
    if (!array.reader) return !known.type;
    if (array.reader->type != known.type || PyTuple_Size(known.values) != array.count) return false;
    for (int i = 0; i < array.count; i++) {
        Object *x = array.values[i], *y = PyTuple_GetItem(known.values, i);
        const bool both = x != y && is_tuple(x) && is_tuple(y);
        if (both ? !alike_tuples(x, y) : !alike(x, y)) return false;
    }
    return true;
}

std::uint64_t hash_of(Object* value) {
    if (is_tuple(value)) {
        std::uint64_t hash = 0;
        for (Size i = 0; i < PyTuple_Size(value); i++)
            hash = mixed(hash, hash_of(PyTuple_GetItem(value, i)));
        return hash;
    }
    if (value->type == &PyLong_Type) {
        const auto number = PyLong_AsUnsignedLongLong(value);
        if (PyErr_Occurred()) PyErr_Clear();
        return number;
    }
    return 1;
}

Entry* find(const Table& table, const Read* arrays, bool makes, std::uint64_t hash,
            Object* stream, bool has_context, std::uint64_t context, Object* options) {
    for (std::size_t i = hash % places; Entry* entry = table.entries[i]; i = (i + 1) % places) {
        const Entry& e = *entry;
        if (e.hash != hash || e.makes != makes || e.has_context != has_context) continue;
        if (e.context != context || !alike(e.stream, stream)) continue;
        bool same = true;
        for (int j = 0; same && j < most_arrays; j++)
            same = is(arrays[j], e.arrays[j])
                   && ((makes && j < 3) || arrays[j].address == e.arrays[j].address);
        if (same && alike_tuples(e.options, options)) return entry;
    }
    return nullptr;
}

std::uint64_t hash_of(const Read* arrays, bool makes) {
    std::uint64_t hash = makes;
    for (int j = 0; j < 3; j++) {
        if (!makes) hash = mixed(hash, arrays[j].address);
        for (int i = 0; makes && i < arrays[j].count; i++)
            hash = mixed(hash, hash_of(arrays[j].values[i]));
    }
    return hash;
}

// The number of the current context, 0 if there is none.
std::uint64_t current(const Table& table) {
    void* context = nullptr;
    unsigned long long number = 0;
    if (table.current_context(&context) || !context) return 0;
    return table.context_number(nullptr, &number) ? 0 : number;
}

// A call of a, b, out (or None) and a bias (or None). Returns the result, what `unknown` does for a
// call that is not known, null with an error.
Object* multiply(Table& table, Object* a, Object* b, Object* out, Object* bias, Object* options) {
    Read arrays[most_arrays];
    Object *given[] = {a, b, out, bias}, *made = nullptr, *result = nullptr;
    for (int i = 0; i < most_arrays; i++)
        if (given[i] != &_Py_NoneStruct && !read(table, given[i], arrays[i]))
            return PyErr_Occurred() ? nullptr : none();
    const Reader& reader = *arrays[0].reader;
    Object* stream = none();
    if (reader.stream) {
        Py_DecRef(stream);
        Object* index = arrays[0].values[reader.index];
        stream = PyObject_CallFunctionObjArgs(reader.stream, index, nullptr);
        if (!stream) {
            cleared();
            return PyErr_Occurred() ? nullptr : none();
        }
    }
    const bool has_context = table.current_context != nullptr;
    const std::uint64_t context = has_context ? current(table) : 0;
    if (out == &_Py_NoneStruct) {
        Entry* maker = find(table, arrays, true, hash_of(arrays, true), stream, has_context,
                            context, options);
        if (maker) {
            maker->users++;
            made = PyObject_CallFunctionObjArgs(maker->action, a, nullptr);
            release(maker);
        }
        if (!made || !read(table, made, arrays[2])) {
            Py_DecRef(stream);
            if (!PyErr_Occurred()) result = unknown(made);
            if (made) Py_DecRef(made);
            return result;
        }
        out = made;
    }
    Entry* entry = find(table, arrays, false, hash_of(arrays, false), stream, has_context, context,
                        options);
    if (entry) {
        entry->users++;
        Object* done = PyObject_CallObject(entry->action, nullptr);
        release(entry);
        if (done) {
            Py_DecRef(done);
            Py_IncRef(out);
            result = out;
        }
    } else {
        result = unknown(made);
    }
    Py_DecRef(stream);
    if (made) Py_DecRef(made);
    return result;
}

void clear(Table& table) {
    for (Entry*& place : table.entries) {
        Entry* entry = place;
        place = nullptr;
        if (entry) release(entry);
    }
    table.taken = 0;
}

// `key` is a tuple: four pairs of a type and the values of an array (None where there is none), the
// stream, the options, the action. False if there is no room.
bool insert(Table& table, Object* key, const std::uint64_t* addresses, bool makes,
            bool has_context, std::uint64_t context) {
    if (2 * table.taken >= places) return false;
    auto* entry = new Entry{};
    std::uint64_t hash = makes;
    for (int j = 0; j < most_arrays; j++) {
        Object* pair = PyTuple_GetItem(key, j);
        if (pair == &_Py_NoneStruct) continue;
        Object* values = PyTuple_GetItem(pair, 1);
        entry->arrays[j] = {PyTuple_GetItem(pair, 0), values, addresses[j]};
        for (Size i = 0; makes && j < 3 && i < PyTuple_Size(values); i++)
            hash = mixed(hash, hash_of(PyTuple_GetItem(values, i)));
    }
    for (int j = 0; !makes && j < 3; j++) hash = mixed(hash, addresses[j]);
    Py_IncRef(key);
    entry->hash = hash, entry->context = context, entry->has_context = has_context;
    entry->stream = PyTuple_GetItem(key, 4), entry->options = PyTuple_GetItem(key, 5);
    entry->action = PyTuple_GetItem(key, 6), entry->key = key;
    entry->makes = makes, entry->users = 1;
    std::size_t i = hash % places;
    while (table.entries[i]) i = (i + 1) % places;
    table.entries[i] = entry;
    table.taken++;
    return true;
}

}  // namespace device
}  // namespace

#endif
