// What calls.cpp uses of CPython's C API ("Python/C API Reference Manual"), declared here because
// Python.h may not be installed; pymm/backends/compiled.py checks the layout of objects. All of it
// is called with the GIL held.
//
// A function that returns an object returns a new reference, but for PyTuple_GetItem.
#ifndef PYTHON_HPP
#define PYTHON_HPP

#include <cstddef>
#include <cstdint>

using Size = std::ptrdiff_t;

struct Object {
    Size references;
    Object* type;
};

struct Method {
    const char* name;
    void* function;
    int flags;
    const char* doc;
};

extern "C" {
extern Object _Py_NoneStruct, _Py_FalseStruct, PyLong_Type, PyFloat_Type, PyUnicode_Type;
extern Object* PyExc_Exception;
void Py_IncRef(Object*);
void Py_DecRef(Object*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
void PyErr_Clear();
Object* PyErr_Occurred();
int PyErr_ExceptionMatches(Object*);
unsigned long PyType_GetFlags(Object*);
Object* PyLong_FromLong(long);
void* PyLong_AsVoidPtr(Object*);
unsigned long long PyLong_AsUnsignedLongLong(Object*);
Object* PyTuple_GetItem(Object*, Size);
Size PyTuple_Size(Object*);
Object* PyTuple_Pack(Size, ...);
Object* PyObject_GetAttr(Object*, Object*);
Object* PyObject_VectorcallMethod(Object*, Object* const*, std::size_t, Object*);
Object* PyObject_CallObject(Object*, Object*);
Object* PyObject_CallFunctionObjArgs(Object*, ...);
int PyObject_RichCompareBool(Object*, Object*, int);
Object* PyCFunction_NewEx(Method*, Object*, Object*);
}

namespace {

constexpr int equal = 2;                             // Py_EQ
constexpr int fast = 0x80, no_arguments = 4;         // METH_FASTCALL, METH_NOARGS
constexpr unsigned long tuple_subclass = 1ul << 26;  // Py_TPFLAGS_TUPLE_SUBCLASS

inline Object* none() {
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}

// What a call returns that is not known: None, or a tuple of the result that was made for it.
inline Object* unknown(Object* made) { return made ? PyTuple_Pack(1, made) : none(); }

inline std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

// Whether two values are alike, without a call of Python code: one object, or equal numbers or
// words of one type.
inline bool alike(Object* x, Object* y) {
    if (x == y) return true;
    if (x->type != y->type) return false;
    if (x->type != &PyLong_Type && x->type != &PyFloat_Type && x->type != &PyUnicode_Type)
        return false;
    const int found = PyObject_RichCompareBool(x, y, equal);
    if (found < 0) PyErr_Clear();
    return found > 0;
}

inline bool is_tuple(Object* x) { return PyType_GetFlags(x->type) & tuple_subclass; }

inline bool alike_tuples(Object* x, Object* y) {
    const Size count = PyTuple_Size(x);
    if (PyTuple_Size(y) != count) return false;
    for (Size i = 0; i < count; i++)
        if (!alike(PyTuple_GetItem(x, i), PyTuple_GetItem(y, i))) return false;
    return true;
}

}  // namespace

#endif
