/*
 * The hit path in C: the key of a call, the lookup, the run; and the launch of a compiled kernel.
 *
 * The law stands in keys.py and the table in table.py; this file must agree with both on every call, and may always
 * say that it cannot judge one: that call then takes the Python road. So nothing here raises for a call that it does
 * not understand, and deleting this file changes no answer.
 *
 * A call is packed into words (sizes, strides, state) and a few immutable objects (strings, types), which are compared
 * in full: no hash decides anything. A `Link` joins a packed call to the slot that the Python table keeps for the same
 * call; it is made only where the Python road has found that slot, so a call that Python would refuse has no link.
 *
 * Only Python's headers are used. What torch offers without headers is the DLPack exchange API (a table of C functions
 * in a capsule) and the C functions behind its Python functions and attributes, which are called directly.
 *
 * Everything runs under the GIL and relies on it: free-threaded Python is refused at import.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifndef _WIN32
#include <dlfcn.h>
#endif

/* ------------------------------------------------------------------------------------- the DLPack exchange API, 1.x */

typedef struct {
    int32_t type, index;
} Device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} Dtype;

typedef struct {
    void *data;
    Device device;
    int32_t ndim;
    Dtype dtype;
    int64_t *sizes;
    int64_t *strides;
    uint64_t byte_offset;
} View;

typedef struct Header {
    uint32_t major, minor;
    struct Header *previous;
} Header;

typedef struct {
    Header header;
    int (*allocate)(void);              /* not used, and declared only for its place */
    int (*managed_from_object)(void);
    int (*managed_to_object)(void);
    int (*view_of)(void *object, View *view);   /* owns nothing: sizes and strides point into the tensor */
    int (*work_stream)(int32_t device_type, int32_t device_index, void **stream);
} Exchange;

/* --------------------------------------------------------------------------------------------- what torch has given */

/* A question to torch. Where it is a C function without arguments it is called directly, past Python's call. */
typedef struct {
    PyObject *question;                 /* a tuple: the function, then its arguments */
    PyCFunction direct;
    PyObject *self;
} Probe;

enum { MOST_PROBES = 16 };

typedef struct {
    int count;
    Probe probes[MOST_PROBES];
} Probes;

/* Bound once, for the process, and never let go. */
static struct {
    const Exchange *exchange;
    PyTypeObject *tensor, *parameter, *base, *module;   /* base: what every kind of tensor is */
    PyTypeObject *size, *device, *dtype, *layout, *memory_format;
    PyGetSetDef *requires_grad, *is_leaf, *dtype_of;
    Probes quiet;                       /* what makes a call a bypass, or is rare: each must answer "nothing" */
    Probes keyed;                       /* what stands in the key by value */
    Probe any_autocast, autocast_cache, deterministic, warn_only;
    PyObject *autocast_devices, *autocast_enabled, *autocast_dtype;
    PyObject *determinism;              /* has fill_uninitialized_memory */
    PyObject *compiler_names, *forward_names;   /* the names of torch.compiler and of torch.autograd.forward_ad */
    PyObject *hook_tables;              /* a tuple of dicts */
    PyObject *dispatch_keys;
    Py_ssize_t impl_at, keyset_at;      /* where a tensor keeps its dispatch-key set; 0 where that is not known */
    PyObject *is_compiling_flag, *current_level, *raw_repr, *fill_memory, *dataclass_fields;
} torch;

/* -------------------------------------------------------------------------------------------------- a call in words */

/* Each level of a nested argument takes a word, so that the words bound the depth, too. */
enum { MOST_WORDS = 512, MOST_OBJECTS = 32, MOST_TENSORS = 64 };

/* The first word of each part of a call says what follows, so that no two different calls pack alike. */
enum { TENSOR = 1, INT, FLOAT, COMPLEX, SINGLETON, IDENTICAL, EQUAL, KIND, SEQUENCE, DICT, SLICE, SAME, OVERLAP };

/* Which tensor stood where, and the addresses that its elements lie in. */
typedef struct {
    const PyObject *tensor;
    uint64_t start, end;
    Device device;
} Place;

typedef struct {
    int word_count, object_count, tensor_count;
    int overlap;
    uint64_t words[MOST_WORDS];
    PyObject *objects[MOST_OBJECTS];    /* strong references; never to anything that holds a tensor */
    Place tensors[MOST_TENSORS];
} Pack;

/* All of these return whether C can judge the call. A Python error may be set where not; pack_call drops it. */

static int push(Pack *pack, uint64_t word)
{
    if (pack->word_count == MOST_WORDS)
        return 0;
    pack->words[pack->word_count++] = word;
    return 1;
}

static uint64_t tagged(int tag, uint64_t low)
{
    return (uint64_t)tag << 56 | low;
}

static int hold(Pack *pack, PyObject *object)
{
    if (pack->object_count == MOST_OBJECTS)
        return 0;
    Py_INCREF(object);
    pack->objects[pack->object_count++] = object;
    return 1;
}

static void drop_objects(Pack *pack)
{
    for (int i = 0; i < pack->object_count; i++)
        Py_DECREF(pack->objects[i]);
    pack->object_count = 0;
}

/* ------------------------------------------------------------------------------------------ the state around a call */

static PyObject *ask(const Probe *probe)
{
    if (probe->direct != NULL)
        return probe->direct(probe->self, NULL);
    PyObject *const *parts = &PyTuple_GET_ITEM(probe->question, 0);
    return PyObject_Vectorcall(parts[0], parts + 1, (size_t)PyTuple_GET_SIZE(probe->question) - 1, NULL);
}

/* A short text as one word; torch's names of precisions are at most seven letters. */
static int word_of_text(PyObject *text, uint64_t *word)
{
    Py_ssize_t length;
    const char *letters = PyUnicode_AsUTF8AndSize(text, &length);
    if (letters == NULL || length > 7)
        return 0;
    *word = tagged((int)length, 0);
    memcpy(word, letters, (size_t)length);
    return 1;
}

/* None and False are 0; numbers are themselves, dtypes (which live for ever) their address. */
static int word_of(PyObject *answer, uint64_t *word)
{
    if (answer == Py_None || answer == Py_False || answer == Py_True) {
        *word = answer == Py_True;
        return 1;
    }
    if (PyLong_CheckExact(answer)) {
        *word = (uint64_t)PyLong_AsLongLong(answer);
        return *word != (uint64_t)-1 || !PyErr_Occurred();
    }
    if (Py_TYPE(answer) == torch.dtype) {
        *word = (uint64_t)(uintptr_t)answer;
        return 1;
    }
    return PyUnicode_CheckExact(answer) && word_of_text(answer, word);
}

static int take_word(PyObject *answer, uint64_t *word)
{
    int judged = answer != NULL && word_of(answer, word);
    Py_XDECREF(answer);
    return judged;
}

static int push_answer(Pack *pack, PyObject *answer)
{
    uint64_t word;
    return take_word(answer, &word) && push(pack, word);
}

/* A module's variable, read where `module.name` would read it; also true where it is no number or is missing. */
static int variable_is_at_least(PyObject *names, PyObject *name, long bound)
{
    PyObject *value = PyDict_GetItemWithError(names, name);
    long number = value == NULL ? bound : PyLong_AsLong(value);
    return number >= bound || PyErr_Occurred();
}

static int is_quiet(void)
{
    uint64_t word;
    for (int i = 0; i < torch.quiet.count; i++)
        if (!take_word(ask(&torch.quiet.probes[i]), &word) || word != 0)
            return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(torch.hook_tables); i++)
        if (PyDict_Size(PyTuple_GET_ITEM(torch.hook_tables, i)) != 0)
            return 0;
    return !variable_is_at_least(torch.compiler_names, torch.is_compiling_flag, 1)
        && !variable_is_at_least(torch.forward_names, torch.current_level, 0);
}

/* Which devices cast, to what, and whether casts are remembered. */
static int pack_autocast(Pack *pack)
{
    uint64_t on = 0, word;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(torch.autocast_devices); i++) {
        PyObject *device = PyTuple_GET_ITEM(torch.autocast_devices, i);
        if (!take_word(PyObject_CallOneArg(torch.autocast_enabled, device), &word))
            return 0;
        if (word != 0) {
            on |= (uint64_t)1 << i;
            if (!push_answer(pack, PyObject_CallOneArg(torch.autocast_dtype, device)))
                return 0;
        }
    }
    /* Last, so that it also says how many words stand before it. */
    return push_answer(pack, ask(&torch.autocast_cache)) && push(pack, tagged(SEQUENCE, on));
}

static int pack_determinism(Pack *pack)
{
    return push_answer(pack, ask(&torch.warn_only))
        && push_answer(pack, PyObject_GetAttr(torch.determinism, torch.fill_memory));
}

static int pack_switch(Pack *pack, const Probe *probe, int (*pack_details)(Pack *))
{
    uint64_t on;
    return take_word(ask(probe), &on) && push(pack, on) && (on == 0 || pack_details(pack));
}

static int pack_ambient(Pack *pack)
{
    if (!is_quiet())
        return 0;
    for (int i = 0; i < torch.keyed.count; i++)
        if (!push_answer(pack, ask(&torch.keyed.probes[i])))
            return 0;
    return pack_switch(pack, &torch.any_autocast, pack_autocast)
        && pack_switch(pack, &torch.deterministic, pack_determinism);
}

/* ------------------------------------------------------------------------------------------------------- one tensor */

/* Where `calibrate` has found the dispatch-key set it is read there; else the two calls that keys.py makes are made. */
static int keyset_by_calls(PyObject *tensor, uint64_t *keyset)
{
    PyObject *keys = PyObject_CallOneArg(torch.dispatch_keys, tensor);
    PyObject *raw = keys == NULL ? NULL : PyObject_CallMethodNoArgs(keys, torch.raw_repr);
    if (raw != NULL)
        *keyset = PyLong_AsUnsignedLongLongMask(raw);
    Py_XDECREF(raw);
    Py_XDECREF(keys);
    return raw != NULL && !PyErr_Occurred();
}

static int keyset_of(PyObject *tensor, uint64_t *keyset)
{
    if (torch.impl_at == 0)
        return keyset_by_calls(tensor, keyset);
    const char *impl;
    memcpy(&impl, (const char *)tensor + torch.impl_at, sizeof impl);
    if (impl == NULL)
        return 0;
    memcpy(keyset, impl + torch.keyset_at, sizeof *keyset);
    return 1;
}

static int flag_of(PyGetSetDef *attribute, PyObject *tensor, int *flag)
{
    PyObject *answer = attribute->get(tensor, attribute->closure);
    *flag = answer == Py_True;
    Py_XDECREF(answer);
    return answer != NULL;
}

/* 0 without a gradient, 1 for a leaf, 2 for what was computed. */
static int grad_of(PyObject *tensor, uint64_t *grad)
{
    int requires_grad, is_leaf = 0;
    if (!flag_of(torch.requires_grad, tensor, &requires_grad))
        return 0;
    if (requires_grad && !flag_of(torch.is_leaf, tensor, &is_leaf))
        return 0;
    *grad = requires_grad ? (uint64_t)(2 - is_leaf) : 0;
    return 1;
}

static uint64_t elements_of(const View *view)
{
    uint64_t count = 1;
    for (int i = 0; i < view->ndim; i++)
        count *= (uint64_t)view->sizes[i];
    return count;
}

/* One after the last address, as keys.span has it. */
static uint64_t end_of(const View *view, uint64_t start)
{
    uint64_t last = 0, bytes = ((uint64_t)view->dtype.bits * view->dtype.lanes + 7) / 8;
    for (int i = 0; i < view->ndim; i++)
        last += (uint64_t)((view->sizes[i] - 1) * view->strides[i]);
    return elements_of(view) == 0 ? start : start + (last + 1) * bytes;
}

static int note_tensor(Pack *pack, const PyObject *tensor, const View *view, uint64_t start)
{
    if (pack->tensor_count == MOST_TENSORS)
        return 0;
    Place place = {tensor, start, pack->overlap ? end_of(view, start) : start, view->device};
    pack->tensors[pack->tensor_count++] = place;
    return 1;
}

/* Storage that was freed leaves a small address; whether such a tensor can be keyed is for Python to say. */
static int has_memory(const View *view, uint64_t start)
{
    return start >= 4096 || elements_of(view) == 0;
}

/* DLPack shows integers of less than eight bits as those of eight: for these torch is asked. */
static int push_dtype(Pack *pack, PyObject *tensor, Dtype dtype)
{
    enum { SIGNED, UNSIGNED };
    if (dtype.bits > 8 || (dtype.code != SIGNED && dtype.code != UNSIGNED))
        return 1;
    return push_answer(pack, torch.dtype_of->get(tensor, torch.dtype_of->closure));
}

static int pack_tensor(Pack *pack, PyObject *tensor)
{
    uint64_t keyset, grad, dtype = 0, device;
    View view;
    /* The view comes last: it points into the tensor, and nothing else may run before it is copied. */
    if (!keyset_of(tensor, &keyset) || !grad_of(tensor, &grad) || torch.exchange->view_of(tensor, &view) != 0)
        return 0;
    if (view.ndim > 64 || (view.ndim > 0 && view.strides == NULL))
        return 0;
    memcpy(&dtype, &view.dtype, sizeof view.dtype);
    memcpy(&device, &view.device, sizeof device);
    uint64_t start = (uint64_t)(uintptr_t)view.data + view.byte_offset;
    if (!has_memory(&view, start) || !note_tensor(pack, tensor, &view, start))
        return 0;
    uint64_t parameter = Py_TYPE(tensor) == torch.parameter;
    uint64_t first = parameter << 52 | grad << 48 | (start & 15) << 40 | (uint64_t)view.ndim << 32 | dtype;
    if (pack->word_count + 3 + 2 * view.ndim > MOST_WORDS)
        return 0;
    push(pack, tagged(TENSOR, first));
    push(pack, device);
    push(pack, keyset);
    for (int i = 0; i < view.ndim; i++) {
        push(pack, (uint64_t)view.sizes[i]);
        push(pack, (uint64_t)view.strides[i]);
    }
    return push_dtype(pack, tensor, view.dtype);
}

/* Which tensors are one object: the first place of each, as keys._same has it. */
static int pack_same(Pack *pack)
{
    for (int i = 1; i < pack->tensor_count; i++) {
        int j = 0;
        while (pack->tensors[j].tensor != pack->tensors[i].tensor)
            j++;
        if (j < i && !push(pack, tagged(SAME, (uint64_t)(i * MOST_TENSORS + j))))
            return 0;
    }
    return 1;
}

static int share_memory(Place a, Place b)
{
    return a.start < b.end && b.start < a.end && a.device.type == b.device.type && a.device.index == b.device.index;
}

/* Which tensors share memory and how far apart they begin, as keys.overlap has it. */
static int pack_overlap(Pack *pack)
{
    for (int i = 0; pack->overlap && i < pack->tensor_count; i++)
        for (int j = i + 1; j < pack->tensor_count; j++) {
            Place a = pack->tensors[i], b = pack->tensors[j];
            if (share_memory(a, b)
                && !(push(pack, tagged(OVERLAP, (uint64_t)(i * MOST_TENSORS + j))) && push(pack, b.start - a.start)))
                return 0;
        }
    return 1;
}

/* -------------------------------------------------------------------------------------------------- other arguments */

static int pack_value(Pack *pack, PyObject *value);

/* An object that is only equal to itself. */
static int pack_identical(Pack *pack, int tag, PyObject *object)
{
    return push(pack, tagged(tag, 0)) && push(pack, (uint64_t)(uintptr_t)object) && hold(pack, object);
}

/* An object of a type whose equality runs no Python code; it is compared when its words are equal. */
static int pack_equal(Pack *pack, PyObject *object)
{
    Py_hash_t hash = PyObject_Hash(object);
    if (hash == -1)
        return 0;
    return push(pack, tagged(EQUAL, 0)) && push(pack, (uint64_t)(uintptr_t)Py_TYPE(object))
        && push(pack, (uint64_t)hash) && hold(pack, object);
}

static int pack_int(Pack *pack, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow)
        return pack_equal(pack, value);
    return push(pack, tagged(INT, 0)) && push(pack, (uint64_t)number);
}

/* The bits, which tell 0.0 from -0.0; every NaN is one. */
static uint64_t float_bits(double number)
{
    uint64_t bits;
    if (number != number)
        return ~(uint64_t)0;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static int pack_complex(Pack *pack, PyObject *value)
{
    Py_complex number = PyComplex_AsCComplex(value);
    return push(pack, tagged(COMPLEX, 0)) && push(pack, float_bits(number.real)) && push(pack, float_bits(number.imag));
}

/* What is inside a container is held while it is packed: asking torch may let other code run. */
static int pack_item(Pack *pack, PyObject *item)
{
    Py_INCREF(item);
    int judged = pack_value(pack, item);
    Py_DECREF(item);
    return judged;
}

static int pack_sequence(Pack *pack, PyObject *values)
{
    Py_ssize_t size = PySequence_Fast_GET_SIZE(values);
    if (!push(pack, tagged(SEQUENCE, (uint64_t)size)) || !push(pack, (uint64_t)(uintptr_t)Py_TYPE(values)))
        return 0;
    for (Py_ssize_t i = 0; i < size; i++)
        if (size != PySequence_Fast_GET_SIZE(values) || !pack_item(pack, PySequence_Fast_GET_ITEM(values, i)))
            return 0;
    return 1;
}

static int pack_items(Pack *pack, PyObject *dict)
{
    Py_ssize_t place = 0, size = PyDict_GET_SIZE(dict);
    PyObject *name, *value;
    while (PyDict_Next(dict, &place, &name, &value))
        if (!pack_item(pack, name) || !pack_item(pack, value) || PyDict_GET_SIZE(dict) != size)
            return 0;
    return 1;
}

static int pack_dict(Pack *pack, PyObject *dict)
{
    return push(pack, tagged(DICT, (uint64_t)PyDict_GET_SIZE(dict))) && pack_items(pack, dict);
}

static int pack_slice(Pack *pack, PyObject *value)
{
    PySliceObject *slice = (PySliceObject *)value;
    return push(pack, tagged(SLICE, 0)) && pack_value(pack, slice->start) && pack_value(pack, slice->stop)
        && pack_value(pack, slice->step);
}

/* Whether keys.tensors may find tensors inside an instance of this type: what it finds there is Python's to key. */
static int may_hold_tensors(PyTypeObject *type)
{
    return PyType_IsSubtype(type, torch.base) || PyType_HasFeature(type, Py_TPFLAGS_LIST_SUBCLASS)
        || PyType_HasFeature(type, Py_TPFLAGS_TUPLE_SUBCLASS) || PyType_HasFeature(type, Py_TPFLAGS_DICT_SUBCLASS)
        || _PyType_Lookup(type, torch.dataclass_fields) != NULL;
}

/* What counts by its type: a module, or a method's `self`. */
static int pack_kind(Pack *pack, PyTypeObject *type)
{
    return !may_hold_tensors(type) && pack_identical(pack, KIND, (PyObject *)type);
}

/* Types that are met less often than tensors and numbers. */
static int pack_other(Pack *pack, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyUnicode_Type || type == &PyBytes_Type || type == torch.device)
        return pack_equal(pack, value);
    if (type == &PyList_Type || type == &PyTuple_Type || type == torch.size)
        return pack_sequence(pack, value);
    if (type == &PyDict_Type)
        return pack_dict(pack, value);
    if (type == &PySlice_Type)
        return pack_slice(pack, value);
    if (type == &PyComplex_Type)
        return pack_complex(pack, value);
    if (type == torch.dtype || type == torch.layout || type == torch.memory_format || type == &PyType_Type)
        return pack_identical(pack, IDENTICAL, value);
    return PyType_IsSubtype(type, torch.module) && pack_kind(pack, type);
}

static int pack_value(Pack *pack, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == torch.tensor || type == torch.parameter)
        return pack_tensor(pack, value);
    if (type == &PyLong_Type)
        return pack_int(pack, value);
    if (value == Py_None || value == Py_True || value == Py_False || value == Py_Ellipsis)
        return push(pack, tagged(SINGLETON, 0)) && push(pack, (uint64_t)(uintptr_t)value);
    if (type == &PyFloat_Type)
        return push(pack, tagged(FLOAT, 0)) && push(pack, float_bits(PyFloat_AS_DOUBLE(value)));
    return pack_other(pack, value);
}

/* --------------------------------------------------------------------------------------------------------- the call */

static int pack_arguments(Pack *pack, PyObject *args, PyObject *kwargs, int receiver)
{
    Py_ssize_t count = PyTuple_GET_SIZE(args), first = receiver && count > 0;
    uint64_t shape = (uint64_t)count << 24 | (uint64_t)PyDict_GET_SIZE(kwargs) << 2;
    if (!push(pack, shape | (uint64_t)first << 1 | (uint64_t)pack->overlap))
        return 0;
    if (first && !pack_kind(pack, Py_TYPE(PyTuple_GET_ITEM(args, 0))))
        return 0;
    for (Py_ssize_t i = first; i < count; i++)
        if (!pack_value(pack, PyTuple_GET_ITEM(args, i)))
            return 0;
    return pack_items(pack, kwargs);
}

/* The whole call. Where this returns 0 nothing is held and no error is set; else drop_objects is the caller's. */
static int pack_call(Pack *pack, PyObject *args, PyObject *kwargs, int receiver, int overlap)
{
    pack->word_count = pack->object_count = pack->tensor_count = 0;
    pack->overlap = overlap;
    if (torch.exchange != NULL && PyTuple_CheckExact(args) && PyDict_CheckExact(kwargs)
        && pack_ambient(pack) && pack_arguments(pack, args, kwargs, receiver)
        && pack_same(pack) && pack_overlap(pack))
        return 1;
    PyErr_Clear();
    drop_objects(pack);
    return 0;
}

static uint64_t hash_of(const Pack *pack)
{
    uint64_t hash = (uint64_t)pack->word_count;
    for (int i = 0; i < pack->word_count; i++) {
        hash = (hash ^ pack->words[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

/* -------------------------------------------------------------------------------------- a packed call, and its slot */

typedef union {
    uint64_t word;
    PyObject *object;
} Cell;

typedef struct Link {
    PyObject_VAR_HEAD
    uint64_t hash;
    PyObject *slot;                     /* the table's; NULL before linking and after unlinking */
    struct Link *next_leaving;
    int word_count, object_count;
    Cell cells[1];                      /* first the words, then the objects */
} Link;

static int link_traverse(PyObject *self, visitproc visit, void *arg)
{
    Link *link = (Link *)self;
    Py_VISIT(link->slot);
    for (int i = 0; i < link->object_count; i++)
        Py_VISIT(link->cells[link->word_count + i].object);
    return 0;
}

static int link_clear(PyObject *self)
{
    Link *link = (Link *)self;
    Py_CLEAR(link->slot);
    while (link->object_count > 0)
        Py_DECREF(link->cells[link->word_count + --link->object_count].object);
    return 0;
}

static void link_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    link_clear(self);
    PyObject_GC_Del(self);
}

static PyTypeObject LinkType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch._hotpath.Link",
    .tp_doc = "A packed call, and the table's slot for it.",
    .tp_basicsize = offsetof(Link, cells),
    .tp_itemsize = sizeof(Cell),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = link_dealloc,
    .tp_traverse = link_traverse,
    .tp_clear = link_clear,
};

/* A link without a slot; it takes over the pack's objects. NULL with an error set. */
static Link *new_link(Pack *pack, uint64_t hash)
{
    Link *link = PyObject_GC_NewVar(Link, &LinkType, pack->word_count + pack->object_count);
    if (link == NULL)
        return NULL;
    link->hash = hash;
    link->slot = NULL;
    link->word_count = pack->word_count;
    link->object_count = pack->object_count;
    memcpy(link->cells, pack->words, (size_t)pack->word_count * sizeof(Cell));
    memcpy(link->cells + pack->word_count, pack->objects, (size_t)pack->object_count * sizeof(Cell));
    pack->object_count = 0;
    PyObject_GC_Track(link);
    return link;
}

/* Objects that are held for identity differ in a word already; the others have an equality that runs no Python code. */
static int same_object(PyObject *a, PyObject *b)
{
    if (a == b)
        return 1;
    int same = Py_TYPE(a) == Py_TYPE(b) && !PyType_Check(a) ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
    if (same < 0)
        PyErr_Clear();
    return same == 1;
}

static int link_is_of(const Link *link, const Pack *pack, uint64_t hash)
{
    if (link->hash != hash || link->word_count != pack->word_count || link->object_count != pack->object_count)
        return 0;
    if (memcmp(link->cells, pack->words, (size_t)pack->word_count * sizeof(Cell)) != 0)
        return 0;
    for (int i = 0; i < pack->object_count; i++)
        if (!same_object(link->cells[link->word_count + i].object, pack->objects[i]))
            return 0;
    return 1;
}

/* --------------------------------------------------------------------------------------------------------- the road */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *python_road;              /* python_road(args, kwargs, link or None): the same call in Python */
    PyObject *plain;
    char receiver, off;
    int overlap;                        /* whether the keys of the linked slots hold which arguments overlap */
    PyTypeObject *slot_type, *entry_type;
    Py_ssize_t entries_at, used_at, run_at, check_at, retry_at;
    PyObject *numbers;                  /* an iterator: the table's numbers of hits */
    Link **places;                      /* open addressing, linear probing; at most half full */
    size_t room, held;
} Road;

enum { SMALLEST_ROOM = 8 };

/* The place of this packed call, or the free place where it would stand. */
static size_t place_of(const Road *road, const Pack *pack, uint64_t hash)
{
    size_t place = hash & (road->room - 1);
    while (road->places[place] != NULL && !link_is_of(road->places[place], pack, hash))
        place = (place + 1) & (road->room - 1);
    return place;
}

static size_t free_place(Link **places, size_t room, uint64_t hash)
{
    size_t place = hash & (room - 1);
    while (places[place] != NULL)
        place = (place + 1) & (room - 1);
    return place;
}

/* 0 with an error set where memory is out; nothing has changed then. */
static int make_room(Road *road)
{
    if (2 * (road->held + 1) <= road->room)
        return 1;
    size_t room = 2 * road->room;
    Link **places = PyMem_Calloc(room, sizeof *places);
    if (places == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (size_t i = 0; i < road->room; i++)
        if (road->places[i] != NULL)
            places[free_place(places, room, road->places[i]->hash)] = road->places[i];
    PyMem_Free(road->places);
    road->places = places;
    road->room = room;
    return 1;
}

/* Free a place and move up what had to give way to it, so that every probe still ends at a free place. */
static void vacate(Road *road, size_t gap)
{
    size_t mask = road->room - 1;
    for (size_t place = (gap + 1) & mask; road->places[place] != NULL; place = (place + 1) & mask) {
        size_t home = road->places[place]->hash & mask;
        if (((place - home) & mask) >= ((place - gap) & mask)) {
            road->places[gap] = road->places[place];
            gap = place;
        }
    }
    road->places[gap] = NULL;
    road->held--;
}

static void take_out(Road *road, Link *link)
{
    size_t place = link->hash & (road->room - 1);
    while (road->places[place] != NULL && road->places[place] != link)
        place = (place + 1) & (road->room - 1);
    if (road->places[place] == NULL)
        return;
    vacate(road, place);
    Py_CLEAR(link->slot);
    Py_DECREF(link);
}

/* Links first leave the road and are let go afterwards: letting go may run code that comes back here. */
static void unlink_all(Road *road)
{
    Link *leaving = NULL;
    for (size_t place = 0; place < road->room; place++)
        if (road->places[place] != NULL) {
            road->places[place]->next_leaving = leaving;
            leaving = road->places[place];
            road->places[place] = NULL;
        }
    road->held = 0;
    while (leaving != NULL) {
        Link *link = leaving;
        leaving = link->next_leaving;
        Py_CLEAR(link->slot);
        Py_DECREF(link);
    }
}

/* -------------------------------------------------------------------------------------------------- a hit, in steps */

/* A field of a Python object with __slots__, borrowed; NULL where it is unset. */
static PyObject *field(PyObject *object, Py_ssize_t at)
{
    PyObject *value;
    memcpy(&value, (const char *)object + at, sizeof value);
    return value;
}

/* The link of this call, or a fresh one without a slot; NULL where C cannot judge the call. No error is set. */
static Link *look(const Road *road, PyObject *args, PyObject *kwargs)
{
    Pack pack;
    if (!pack_call(&pack, args, kwargs, road->receiver, road->overlap))
        return NULL;
    uint64_t hash = hash_of(&pack);
    Link *link = road->places[place_of(road, &pack, hash)];
    Py_XINCREF(link);
    if (link == NULL && (link = new_link(&pack, hash)) == NULL)
        PyErr_Clear();
    drop_objects(&pack);
    return link;
}

/* Whether an entry has a build whose guards hold now; -1 with an error set where asking raised. */
static int serves(const Road *road, PyObject *entry, PyObject *args, PyObject *kwargs)
{
    PyObject *run = field(entry, road->run_at), *check = field(entry, road->check_at);
    if (run == NULL || run == Py_None || check == NULL)
        return 0;
    if (check == Py_None)
        return 1;
    PyObject *call[] = {args, kwargs};
    Py_INCREF(check);
    PyObject *verdict = PyObject_Vectorcall(check, call, 2, NULL);
    Py_DECREF(check);
    if (verdict == NULL)
        return -1;
    int serving = PyObject_IsTrue(verdict);
    Py_DECREF(verdict);
    return serving;
}

/* The newest entry of a slot that serves the call; NULL where none does, with an error set where asking raised. */
static PyObject *serving_entry(const Road *road, PyObject *slot, PyObject *args, PyObject *kwargs)
{
    PyObject *entries = field(slot, road->entries_at), *found = NULL;
    if (entries == NULL || !PyTuple_CheckExact(entries))
        return NULL;
    Py_INCREF(entries);     /* asking an entry's guards may publish another */
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries) && found == NULL; i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        int serving = Py_TYPE(entry) == road->entry_type ? serves(road, entry, args, kwargs) : 0;
        if (serving < 0)
            break;
        found = serving ? entry : NULL;
    }
    Py_XINCREF(found);
    Py_DECREF(entries);
    return found;
}

/* Number the hit, as Table.find does: the table learns from it how many there were and which keys were used last. */
static int number_hit(const Road *road, PyObject *slot)
{
    PyObject *number = Py_TYPE(road->numbers)->tp_iternext(road->numbers), *before = field(slot, road->used_at);
    if (number == NULL)
        return 0;
    memcpy((char *)slot + road->used_at, &number, sizeof number);
    Py_XDECREF(before);
    return 1;
}

static PyObject *call_with(PyObject *callable, PyObject *args, PyObject *kwargs)
{
    if (PyDict_GET_SIZE(kwargs) == 0)
        return PyObject_Vectorcall(callable, &PyTuple_GET_ITEM(args, 0), (size_t)PyTuple_GET_SIZE(args), NULL);
    return PyObject_Call(callable, args, kwargs);
}

/* The exception that is being raised, taken from there. */
static PyObject *take_raised(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
#endif
}

/* `except Exception: return plain(...)`: while plain runs, what the build raised is the exception being handled. */
static PyObject *plain_instead(const Road *road, PyObject *args, PyObject *kwargs)
{
    PyObject *before = PyErr_GetHandledException(), *error = take_raised();
    PyErr_SetHandledException(error);
    PyObject *answer = call_with(road->plain, args, kwargs);
    PyErr_SetHandledException(before);
    Py_XDECREF(before);
    Py_XDECREF(error);
    return answer;
}

static PyObject *run_entry(const Road *road, PyObject *entry, PyObject *args, PyObject *kwargs)
{
    PyObject *run = field(entry, road->run_at);
    int retry = field(entry, road->retry_at) == Py_True;
    Py_INCREF(run);         /* the table may let the build go while it runs */
    PyObject *answer = call_with(run, args, kwargs);
    if (answer == NULL && retry && PyErr_ExceptionMatches(PyExc_Exception))
        answer = plain_instead(road, args, kwargs);
    Py_DECREF(run);
    return answer;
}

/* The entry for this call by a known link, counted; NULL where there is none, with an error set where asking raised. */
static PyObject *hit_entry(const Road *road, const Link *link, PyObject *args, PyObject *kwargs)
{
    if (link == NULL || link->slot == NULL)
        return NULL;
    PyObject *slot = Py_NewRef(link->slot);
    PyObject *entry = serving_entry(road, slot, args, kwargs);
    /* Its build may have been lost while the guards were asked. */
    if (entry != NULL && (field(entry, road->run_at) == Py_None || !number_hit(road, slot)))
        Py_CLEAR(entry);
    Py_DECREF(slot);
    return entry;
}

static PyObject *by_python(const Road *road, PyObject *args, PyObject *kwargs, Link *link)
{
    /* A link that has a slot already is no news for the table. */
    PyObject *fresh = link != NULL && link->slot == NULL ? (PyObject *)link : Py_None;
    PyObject *call[] = {args, kwargs, fresh};
    return PyObject_Vectorcall(road->python_road, call, 3, NULL);
}

static PyObject *road_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    Road *road = (Road *)self;
    if (PyVectorcall_NARGS(flags) != 2 || names != NULL)
        return PyErr_Format(PyExc_TypeError, "a road takes the arguments of a call as a tuple and a dict");
    PyObject *args = call[0], *kwargs = call[1];
    Link *link = road->off ? NULL : look(road, args, kwargs);
    PyObject *entry = hit_entry(road, link, args, kwargs), *answer = NULL;
    if (entry != NULL) {
        Py_XDECREF(link);
        answer = run_entry(road, entry, args, kwargs);
        Py_DECREF(entry);
        return answer;
    }
    if (!PyErr_Occurred())
        answer = by_python(road, args, kwargs, link);
    Py_XDECREF(link);
    return answer;
}

/* ---------------------------------------------------------------------------------------- what the table asks of it */

PyDoc_STRVAR(find_doc, "find(args, kwargs, /)\n--\n\n"
    "The slot linked to this call, or None; nothing is counted or run.");

static PyObject *road_find(PyObject *self, PyObject *const *call, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "find takes args and kwargs");
    Road *road = (Road *)self;
    Pack pack;
    PyObject *slot = NULL;
    if (pack_call(&pack, call[0], call[1], road->receiver, road->overlap)) {
        Link *link = road->places[place_of(road, &pack, hash_of(&pack))];
        slot = link == NULL ? NULL : link->slot;
        Py_XINCREF(slot);
        drop_objects(&pack);
    }
    if (slot == NULL)
        Py_RETURN_NONE;
    return slot;
}

/* Keys of another form make every link wrong. */
static void set_overlap(Road *road, int overlap)
{
    if (road->overlap == overlap)
        return;
    road->overlap = overlap;
    unlink_all(road);
}

/* Whether the call packs as it did when the link was made, and nothing stands in the link's place. */
static int still_packs_as(const Road *road, const Link *link, PyObject *args, PyObject *kwargs)
{
    Pack pack;
    if (!pack_call(&pack, args, kwargs, road->receiver, road->overlap))
        return 0;
    uint64_t hash = hash_of(&pack);
    int same = link_is_of(link, &pack, hash) && road->places[place_of(road, &pack, hash)] == NULL;
    drop_objects(&pack);
    return same;
}

PyDoc_STRVAR(link_doc, "link(link, slot, args, kwargs, overlap, /)\n--\n\n"
    "Let calls that pack as this one find the slot; whether that was done.\n\n"
    "The link was made of the call before the Python road made its key. The call is packed again here: if both agree,\n"
    "nothing has changed in between, and the key is of the same state as the link.");

static PyObject *road_link(PyObject *self, PyObject *const *call, Py_ssize_t count)
{
    Road *road = (Road *)self;
    if (count != 5 || Py_TYPE(call[0]) != &LinkType || Py_TYPE(call[1]) != road->slot_type || road->numbers == NULL)
        return PyErr_Format(PyExc_TypeError, "link takes a link, a slot, args, kwargs and overlap");
    Link *link = (Link *)call[0];
    set_overlap(road, call[4] == Py_True);
    if (link->slot != NULL || !still_packs_as(road, link, call[2], call[3]))
        Py_RETURN_FALSE;
    if (!make_room(road))
        return NULL;
    road->places[free_place(road->places, road->room, link->hash)] = link;
    road->held++;
    Py_INCREF(link);
    Py_INCREF(call[1]);
    link->slot = call[1];
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(unlink_doc, "unlink(link, /)\n--\n\nNo call finds this link's slot any more.");

static PyObject *road_unlink(PyObject *self, PyObject *link)
{
    if (Py_TYPE(link) != &LinkType)
        return PyErr_Format(PyExc_TypeError, "unlink takes a link");
    take_out((Road *)self, (Link *)link);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(clear_doc, "clear(/)\n--\n\nNo call finds any slot any more.");

static PyObject *road_clear_method(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    unlink_all((Road *)self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(number_doc, "number(numbers, /)\n--\n\nTake the numbers of hits from this iterator.");

static PyObject *road_number(PyObject *self, PyObject *numbers)
{
    if (!PyIter_Check(numbers))
        return PyErr_Format(PyExc_TypeError, "number takes an iterator");
    Py_XSETREF(((Road *)self)->numbers, Py_NewRef(numbers));
    Py_RETURN_NONE;
}

/* Where an instance keeps a field of its __slots__; -1 with an error set where it has none of that name. */
static Py_ssize_t field_at(PyTypeObject *type, const char *name)
{
    Py_ssize_t at = -1;
    PyObject *member = PyObject_GetAttrString((PyObject *)type, name);
    if (member == NULL)
        return -1;
    if (Py_TYPE(member) == &PyMemberDescr_Type && PyDescr_TYPE(member) == type
        && ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX)
        at = ((PyMemberDescrObject *)member)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%s.%s is no field in __slots__", type->tp_name, name);
    Py_DECREF(member);
    return at;
}

PyDoc_STRVAR(read_doc, "read(slot_type, entry_type, /)\n--\n\n"
    "Learn where slots keep `entries` and `used`, and entries `run`, `check` and `retry`; raises TypeError.");

static PyObject *road_read(PyObject *self, PyObject *const *types, Py_ssize_t count)
{
    if (count != 2 || !PyType_Check(types[0]) || !PyType_Check(types[1]))
        return PyErr_Format(PyExc_TypeError, "read takes the types of slots and of entries");
    Road *road = (Road *)self;
    PyTypeObject *slot = (PyTypeObject *)types[0], *entry = (PyTypeObject *)types[1];
    if ((road->entries_at = field_at(slot, "entries")) < 0 || (road->used_at = field_at(slot, "used")) < 0
        || (road->run_at = field_at(entry, "run")) < 0 || (road->check_at = field_at(entry, "check")) < 0
        || (road->retry_at = field_at(entry, "retry")) < 0)
        return NULL;
    Py_XSETREF(road->slot_type, (PyTypeObject *)Py_NewRef(types[0]));
    Py_XSETREF(road->entry_type, (PyTypeObject *)Py_NewRef(types[1]));
    Py_RETURN_NONE;
}

/* ----------------------------------------------------------------------------------------------- the road as a type */

static PyObject *road_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"python_road", "plain", "receiver", NULL};
    PyObject *python_road, *plain;
    int receiver = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|p", names, &python_road, &plain, &receiver))
        return NULL;
    Road *road = (Road *)type->tp_alloc(type, 0);
    if (road == NULL)
        return NULL;
    road->vectorcall = road_vectorcall;
    road->python_road = Py_NewRef(python_road);
    road->plain = Py_NewRef(plain);
    road->receiver = (char)receiver;
    road->room = SMALLEST_ROOM;
    road->places = PyMem_Calloc(road->room, sizeof *road->places);
    if (road->places == NULL) {
        road->room = 0;
        Py_DECREF(road);
        return PyErr_NoMemory();
    }
    return (PyObject *)road;
}

static int road_traverse(PyObject *self, visitproc visit, void *arg)
{
    Road *road = (Road *)self;
    Py_VISIT(road->python_road);
    Py_VISIT(road->plain);
    Py_VISIT(road->numbers);
    Py_VISIT(road->slot_type);
    Py_VISIT(road->entry_type);
    for (size_t i = 0; i < road->room; i++)
        Py_VISIT(road->places[i]);
    return 0;
}

static int road_clear(PyObject *self)
{
    Road *road = (Road *)self;
    unlink_all(road);
    Py_CLEAR(road->numbers);
    Py_CLEAR(road->python_road);
    Py_CLEAR(road->plain);
    Py_CLEAR(road->slot_type);
    Py_CLEAR(road->entry_type);
    return 0;
}

static void road_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    road_clear(self);
    PyMem_Free(((Road *)self)->places);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef road_methods[] = {
    {"find", (PyCFunction)(void (*)(void))road_find, METH_FASTCALL, find_doc},
    {"link", (PyCFunction)(void (*)(void))road_link, METH_FASTCALL, link_doc},
    {"unlink", road_unlink, METH_O, unlink_doc},
    {"clear", road_clear_method, METH_NOARGS, clear_doc},
    {"number", road_number, METH_O, number_doc},
    {"read", (PyCFunction)(void (*)(void))road_read, METH_FASTCALL, read_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef road_members[] = {
    {"off", T_BOOL, offsetof(Road, off), 0, "whether every call takes the Python road"},
    {"held", T_PYSSIZET, offsetof(Road, held), READONLY, "how many calls are linked"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Road, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject RoadType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch._hotpath.Road",
    .tp_doc = "Road(python_road, plain, receiver=False)\n--\n\n"
              "The hit path of one dispatcher: road(args, kwargs) runs what the table holds for this call.",
    .tp_basicsize = sizeof(Road),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = road_new,
    .tp_dealloc = road_dealloc,
    .tp_traverse = road_traverse,
    .tp_clear = road_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Road, vectorcall),
    .tp_methods = road_methods,
    .tp_members = road_members,
};

/* -------------------------------------------------------------------------------------- a launch by the CUDA driver */

/*
 * A compiled kernel whose launch is settled but for the grid, the stream and the arguments. Only kernels that need
 * nothing else of the driver have a plan (no clusters, no cooperative grid, no programmatic launch, no scratch memory),
 * and only where the driver confirms the place and size of every parameter.
 */
enum { CUDA = 2, MOST_PARAMETERS = 128, MOST_BYTES = 1024 };    /* CUDA: DLPack's number of it */
enum { NO_CONTEXT = 201 };

/* The driver's functions, found when first asked for: this file is built and loaded without CUDA. */
static struct {
    int (*launch)(void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
        unsigned threads_z, unsigned shared, void *stream, void **parameters, void **extra);
    int (*parameter_info)(void *function, size_t index, size_t *offset, size_t *size);
    int (*error_text)(int error, const char **text);
    int (*work_stream)(int32_t device_type, int32_t device_index, void **stream);   /* torch's */
} driver;

/* What a parameter is made of: an address, a signed or unsigned integer, a floating-point number, or zeros. */
enum { ADDRESS = 'p', SIGNED_INT = 'i', UNSIGNED_INT = 'u', REAL = 'f', ZEROS = '0' };

typedef struct {
    size_t offset, size;
    int kind;
    Py_ssize_t source;                  /* the place of its value in a call's values */
} Parameter;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name;
    void *function;
    unsigned threads, shared;
    int device;
    Py_ssize_t count, values;           /* parameters, and values that a call must have at least */
    Parameter parameters[MOST_PARAMETERS];
} Plan;

static const char *driver_says(int error)
{
    const char *text = NULL;
    if (driver.error_text == NULL || driver.error_text(error, &text) != 0 || text == NULL)
        return "unknown error";
    return text;
}

static int address_of(PyObject *value, uint64_t *address)
{
    View view;
    *address = 0;
    if (value == Py_None)
        return 1;
    if (PyLong_Check(value)) {
        *address = PyLong_AsUnsignedLongLong(value);
        return *address != (uint64_t)-1 || !PyErr_Occurred();
    }
    if (Py_TYPE(value) != torch.tensor && Py_TYPE(value) != torch.parameter) {
        PyErr_Format(PyExc_TypeError, "a %s is no address", Py_TYPE(value)->tp_name);
        return 0;
    }
    if (torch.exchange == NULL || torch.exchange->view_of(value, &view) != 0)
        return 0;
    *address = (uint64_t)(uintptr_t)view.data + view.byte_offset;
    return 1;
}

static int fits(uint64_t number, size_t size, int is_signed)
{
    unsigned spare = 64 - 8 * (unsigned)size;
    return is_signed ? (uint64_t)((int64_t)(number << spare) >> spare) == number : number << spare >> spare == number;
}

static int integer_of(PyObject *value, const Parameter *parameter, uint64_t *bits)
{
    int is_signed = parameter->kind == SIGNED_INT;
    *bits = is_signed ? (uint64_t)PyLong_AsLongLong(value) : PyLong_AsUnsignedLongLong(value);
    if (*bits == (uint64_t)-1 && PyErr_Occurred())
        return 0;
    if (fits(*bits, parameter->size, is_signed))
        return 1;
    PyErr_Format(PyExc_OverflowError, "%R does not fit %zu bytes", value, parameter->size);
    return 0;
}

static int real_of(PyObject *value, size_t size, uint64_t *bits)
{
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred())
        return 0;
    float narrow = (float)number;
    memcpy(bits, size == sizeof narrow ? (void *)&narrow : (void *)&number, size);
    return 1;
}

/* The bits of one parameter, the low bytes first: CUDA's hosts are little-endian. */
static int bits_of(PyObject *value, const Parameter *parameter, uint64_t *bits)
{
    switch (parameter->kind) {
    case ADDRESS:
        return address_of(value, bits);
    case REAL:
        return real_of(value, parameter->size, bits);
    default:
        return integer_of(value, parameter, bits);
    }
}

static int fill(const Plan *plan, PyObject *values, char *buffer, void **places)
{
    for (Py_ssize_t i = 0; i < plan->count; i++) {
        const Parameter *parameter = &plan->parameters[i];
        uint64_t bits = 0;
        if (parameter->kind != ZEROS && !bits_of(PyTuple_GET_ITEM(values, parameter->source), parameter, &bits))
            return 0;
        places[i] = buffer + parameter->offset;
        memcpy(places[i], &bits, parameter->size);
    }
    return 1;
}

/* One to three sizes; those that are left out are 1. */
static int grid_of(PyObject *grid, unsigned sizes[3])
{
    Py_ssize_t count = PyTuple_CheckExact(grid) ? PyTuple_GET_SIZE(grid) : 0;
    if (count < 1 || count > 3) {
        PyErr_Format(PyExc_TypeError, "a grid is a tuple of one to three sizes, not %R", grid);
        return 0;
    }
    for (Py_ssize_t i = 0; i < 3; i++) {
        long size = i < count ? PyLong_AsLong(PyTuple_GET_ITEM(grid, i)) : 1;
        if (size == -1 && PyErr_Occurred())
            return 0;
        if (size < 0 || size > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "%R is no grid", grid);
            return 0;
        }
        sizes[i] = (unsigned)size;
    }
    return 1;
}

static PyObject *failed_launch(const Plan *plan, PyObject *grid, PyObject *values, int error)
{
    return PyErr_Format(PyExc_RuntimeError,
        "the CUDA driver refused to launch %U\n  grid = %R\n  threads = %u\n  shared = %u bytes\n  arguments = %R\n"
        "CUDA error %d: %s", plan->name, grid, plan->threads, plan->shared, values, error, driver_says(error));
}

static PyObject *launch(const Plan *plan, PyObject *grid, PyObject *values)
{
    uint64_t buffer[MOST_BYTES / sizeof(uint64_t)];
    void *places[MOST_PARAMETERS], *stream = NULL;
    unsigned sizes[3];
    if (!grid_of(grid, sizes) || !fill(plan, values, (char *)buffer, places))
        return NULL;
    if (sizes[0] == 0 || sizes[1] == 0 || sizes[2] == 0)
        Py_RETURN_TRUE;     /* as Triton has it: nothing to do is done */
    if (driver.work_stream(CUDA, plan->device, &stream) != 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "torch gives no stream");
    int error;
    Py_BEGIN_ALLOW_THREADS
    error = driver.launch(plan->function, sizes[0], sizes[1], sizes[2], plan->threads, 1, 1, plan->shared, stream,
        places, NULL);
    Py_END_ALLOW_THREADS
    if (error == NO_CONTEXT)
        Py_RETURN_FALSE;    /* this thread has not used CUDA yet, and nothing was launched */
    return error != 0 ? failed_launch(plan, grid, values, error) : Py_NewRef(Py_True);
}

static PyObject *plan_vectorcall(PyObject *self, PyObject *const *call, size_t flags, PyObject *names)
{
    const Plan *plan = (Plan *)self;
    if (PyVectorcall_NARGS(flags) != 2 || names != NULL || !PyTuple_CheckExact(call[1])
        || PyTuple_GET_SIZE(call[1]) < plan->values)
        return PyErr_Format(PyExc_TypeError, "a launch of %U takes a grid and a tuple of %zd values", plan->name,
            plan->values);
    return launch(plan, call[0], call[1]);
}

/* The driver's word for where a parameter stands; how many there are is told by the first that it does not know. */
static int confirm(const Plan *plan, Py_ssize_t i, Parameter *parameter)
{
    size_t size = 0;
    int error = driver.parameter_info(plan->function, (size_t)i, &parameter->offset, &size);
    if (error == 0 && size == parameter->size && parameter->offset + size <= MOST_BYTES)
        return 1;
    PyErr_Format(PyExc_ValueError, "parameter %zd of %U takes %zu bytes, and %zu are to be passed (%s)", i, plan->name,
        size, parameter->size, error == 0 ? "the driver knows it" : driver_says(error));
    return 0;
}

static int confirm_count(const Plan *plan)
{
    size_t offset, size;
    if (driver.parameter_info(plan->function, (size_t)plan->count, &offset, &size) != 0)
        return 1;
    PyErr_Format(PyExc_ValueError, "%U takes more than the %zd parameters that are to be passed", plan->name,
        plan->count);
    return 0;
}

static int is_kind_of_size(int kind, Py_ssize_t size)
{
    if (kind == ADDRESS)
        return size == 8;
    if (kind == REAL)
        return size == 4 || size == 8;
    return (kind == SIGNED_INT || kind == UNSIGNED_INT || kind == ZEROS)
        && (size == 1 || size == 2 || size == 4 || size == 8);
}

static int take_parameter(Plan *plan, Py_ssize_t i, PyObject *given_parameter)
{
    Parameter *parameter = &plan->parameters[i];
    Py_ssize_t size;
    if (!PyArg_ParseTuple(given_parameter, "Cnn", &parameter->kind, &size, &parameter->source))
        return 0;
    if (!is_kind_of_size(parameter->kind, size) || parameter->source < 0) {
        PyErr_Format(PyExc_ValueError, "%R is no parameter", given_parameter);
        return 0;
    }
    parameter->size = (size_t)size;
    if (parameter->kind != ZEROS && parameter->source >= plan->values)
        plan->values = parameter->source + 1;
    return confirm(plan, i, parameter);
}

static int take_parameters(Plan *plan, PyObject *parameters)
{
    plan->count = PyTuple_GET_SIZE(parameters);
    if (plan->count > MOST_PARAMETERS) {
        PyErr_Format(PyExc_ValueError, "%U takes more than %d parameters", plan->name, MOST_PARAMETERS);
        return 0;
    }
    for (Py_ssize_t i = 0; i < plan->count; i++)
        if (!take_parameter(plan, i, PyTuple_GET_ITEM(parameters, i)))
            return 0;
    return confirm_count(plan);
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "function", "threads", "shared", "device", "parameters", NULL};
    PyObject *name, *parameters;
    unsigned long long function;
    unsigned threads, shared;
    int device;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UKIIiO!", names, &name, &function, &threads, &shared, &device,
            &PyTuple_Type, &parameters))
        return NULL;
    if (driver.launch == NULL || driver.work_stream == NULL)
        return PyErr_Format(PyExc_RuntimeError, "there is no driver to launch %U with", name);
    Plan *plan = (Plan *)type->tp_alloc(type, 0);
    if (plan == NULL)
        return NULL;
    plan->vectorcall = plan_vectorcall;
    plan->name = Py_NewRef(name);
    plan->function = (void *)(uintptr_t)function;
    plan->threads = threads;
    plan->shared = shared;
    plan->device = device;
    if (!take_parameters(plan, parameters))
        Py_CLEAR(plan);
    return (PyObject *)plan;
}

static void plan_dealloc(PyObject *self)
{
    Py_XDECREF(((Plan *)self)->name);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef plan_members[] = {
    {"name", T_OBJECT_EX, offsetof(Plan, name), READONLY, "the kernel's"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Plan, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject PlanType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch._hotpath.Plan",
    .tp_doc = "Plan(name, function, threads, shared, device, parameters)\n--\n\n"
              "plan(grid, values) launches a loaded kernel on the device's current stream; False where this thread\n"
              "has no CUDA context yet, so that nothing was launched. A parameter is (kind, bytes, place of its\n"
              "value), a kind one of p (address, tensor or None), i, u, f and 0 (zeros). Raises ValueError where the\n"
              "driver knows the parameters otherwise, RuntimeError naming kernel and call where it refuses a launch.",
    .tp_basicsize = sizeof(Plan),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = plan_new,
    .tp_dealloc = plan_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Plan, vectorcall),
    .tp_members = plan_members,
};

/* Addresses of functions are data to dlsym and to tests. */
static void set_driver(void *launch_at, void *info_at, void *text_at, void *stream_at)
{
    memcpy(&driver.launch, &launch_at, sizeof launch_at);
    memcpy(&driver.parameter_info, &info_at, sizeof info_at);
    memcpy(&driver.error_text, &text_at, sizeof text_at);
    memcpy(&driver.work_stream, &stream_at, sizeof stream_at);
}

static PyObject *find_driver(void)
{
#ifdef _WIN32
    return PyErr_Format(PyExc_OSError, "the CUDA driver is not looked for on Windows");
#else
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return PyErr_Format(PyExc_OSError, "there is no CUDA driver (%s)", dlerror());
    void *launch_at = dlsym(library, "cuLaunchKernel"), *info_at = dlsym(library, "cuFuncGetParamInfo");
    if (launch_at == NULL || info_at == NULL)
        return PyErr_Format(PyExc_OSError, "this CUDA driver does not tell a kernel's parameters (cuFuncGetParamInfo)");
    set_driver(launch_at, info_at, dlsym(library, "cuGetErrorString"), NULL);
    driver.work_stream = torch.exchange == NULL ? NULL : torch.exchange->work_stream;
    Py_RETURN_NONE;
#endif
}

PyDoc_STRVAR(use_driver_doc, "use_driver(functions=None, /)\n--\n\n"
    "Find the CUDA driver; raises OSError where there is none that tells a kernel's parameters. Tests give the\n"
    "addresses of functions in its place: cuLaunchKernel, cuFuncGetParamInfo, cuGetErrorString, and torch's for the\n"
    "current stream; 0 means none.");

static PyObject *use_driver(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long at[4];
    if (PyTuple_GET_SIZE(args) == 0)
        return find_driver();
    if (!PyArg_ParseTuple(args, "(KKKK)", &at[0], &at[1], &at[2], &at[3]))
        return NULL;
    set_driver((void *)(uintptr_t)at[0], (void *)(uintptr_t)at[1], (void *)(uintptr_t)at[2], (void *)(uintptr_t)at[3]);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------------------------------- the module: binding torch */

/* A name that must be among those given, borrowed. NULL with an error set. */
static PyObject *given(PyObject *names, const char *name)
{
    PyObject *value = PyDict_GetItemString(names, name);
    if (value == NULL)
        PyErr_Format(PyExc_TypeError, "%s is not given", name);
    return value;
}

static int bind_object(PyObject *names, const char *name, PyTypeObject *type, PyObject **place)
{
    PyObject *value = given(names, name);
    if (value == NULL)
        return 0;
    if (!PyObject_TypeCheck(value, type)) {
        PyErr_Format(PyExc_TypeError, "%s is no %s", name, type->tp_name);
        return 0;
    }
    Py_XSETREF(*place, Py_NewRef(value));
    return 1;
}

static int bind_type(PyObject *names, const char *name, PyTypeObject **place)
{
    PyObject *value = given(names, name);
    if (value == NULL)
        return 0;
    if (!PyType_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s is no type", name);
        return 0;
    }
    Py_XSETREF(*place, (PyTypeObject *)Py_NewRef(value));
    return 1;
}

/* The C function behind an attribute of tensors. */
static int bind_attribute(PyObject *names, const char *name, PyGetSetDef **place)
{
    PyObject *value = given(names, name);
    if (value == NULL)
        return 0;
    if (Py_TYPE(value) != &PyGetSetDescr_Type || !PyType_IsSubtype(torch.tensor, PyDescr_TYPE(value))) {
        PyErr_Format(PyExc_TypeError, "%s is no attribute of tensors that is written in C", name);
        return 0;
    }
    *place = ((PyGetSetDescrObject *)Py_NewRef(value))->d_getset;
    return 1;
}

static int is_tuple_of_some(PyObject *value, const char *name)
{
    if (PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) > 0)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s is no tuple, or an empty one", name);
    return 0;
}

static int take_question(PyObject *question, const char *name, Probe *probe)
{
    if (!is_tuple_of_some(question, name))
        return 0;
    Py_XSETREF(probe->question, Py_NewRef(question));
    PyObject *function = PyTuple_GET_ITEM(question, 0);
    int direct = PyTuple_GET_SIZE(question) == 1 && PyCFunction_CheckExact(function)
        && PyCFunction_GET_FLAGS(function) == METH_NOARGS;
    probe->direct = direct ? PyCFunction_GET_FUNCTION(function) : NULL;
    probe->self = direct ? PyCFunction_GET_SELF(function) : NULL;
    return 1;
}

static int bind_probe(PyObject *names, const char *name, Probe *probe)
{
    PyObject *value = given(names, name);
    return value != NULL && take_question(value, name, probe);
}

static int bind_probes(PyObject *names, const char *name, Probes *probes)
{
    PyObject *value = given(names, name);
    if (value == NULL || !is_tuple_of_some(value, name))
        return 0;
    probes->count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value) && i < MOST_PROBES; i++, probes->count++)
        if (!take_question(PyTuple_GET_ITEM(value, i), name, &probes->probes[i]))
            return 0;
    if (probes->count == PyTuple_GET_SIZE(value))
        return 1;
    PyErr_Format(PyExc_TypeError, "%s holds more than %d questions", name, MOST_PROBES);
    return 0;
}

static int bind_exchange(PyObject *names)
{
    PyObject *capsule = given(names, "exchange");
    const Exchange *exchange = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (exchange == NULL)
        return 0;
    if (exchange->header.major != 1 || exchange->view_of == NULL) {
        PyErr_Format(PyExc_TypeError, "version %u.%u of the DLPack exchange API%s", exchange->header.major,
            exchange->header.minor, exchange->view_of == NULL ? ", without views" : "");
        return 0;
    }
    torch.exchange = exchange;
    return 1;
}

static int bind_state(PyObject *names)
{
    return bind_probes(names, "quiet", &torch.quiet) && bind_probes(names, "keyed", &torch.keyed)
        && bind_probe(names, "any_autocast", &torch.any_autocast)
        && bind_probe(names, "autocast_cache", &torch.autocast_cache)
        && bind_probe(names, "deterministic", &torch.deterministic)
        && bind_probe(names, "warn_only", &torch.warn_only)
        && bind_object(names, "autocast_devices", &PyTuple_Type, &torch.autocast_devices)
        && bind_object(names, "autocast_enabled", &PyBaseObject_Type, &torch.autocast_enabled)
        && bind_object(names, "autocast_dtype", &PyBaseObject_Type, &torch.autocast_dtype)
        && bind_object(names, "determinism", &PyBaseObject_Type, &torch.determinism)
        && bind_object(names, "compiler_names", &PyDict_Type, &torch.compiler_names)
        && bind_object(names, "forward_names", &PyDict_Type, &torch.forward_names)
        && bind_object(names, "hook_tables", &PyTuple_Type, &torch.hook_tables)
        && bind_object(names, "dispatch_keys", &PyBaseObject_Type, &torch.dispatch_keys);
}

static int bind_types(PyObject *names)
{
    return bind_type(names, "TensorBase", &torch.base) && bind_type(names, "Tensor", &torch.tensor)
        && bind_type(names, "Parameter", &torch.parameter)
        && bind_type(names, "Module", &torch.module) && bind_type(names, "Size", &torch.size)
        && bind_type(names, "device", &torch.device) && bind_type(names, "dtype", &torch.dtype)
        && bind_type(names, "layout", &torch.layout) && bind_type(names, "memory_format", &torch.memory_format);
}

PyDoc_STRVAR(bind_doc, "bind(names, /)\n--\n\n"
    "Take torch's types and functions from a dict; raises TypeError for what is not as this file needs it.");

static PyObject *bind(PyObject *Py_UNUSED(module), PyObject *names)
{
    torch.exchange = NULL;      /* until all is bound, no call can be judged */
    if (!PyDict_Check(names))
        return PyErr_Format(PyExc_TypeError, "bind takes a dict");
    if (!bind_types(names) || !bind_attribute(names, "requires_grad", &torch.requires_grad)
        || !bind_attribute(names, "is_leaf", &torch.is_leaf) || !bind_attribute(names, "dtype_of", &torch.dtype_of)
        || !bind_state(names) || !bind_exchange(names))
        return NULL;
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------ where a tensor keeps its dispatch-key set */

/*
 * Asking torch for the set costs more than all the rest of a tensor's key. It stands in a fixed place of what a tensor
 * points to, and that place is found by looking, not by knowing a version: the one offset at which every tensor of
 * many kinds shows the set that torch states for it. Where there is none, torch is asked.
 */
typedef struct {
    const char *object, *impl;
    uint64_t keyset;
    size_t size;                        /* bytes of the implementation that are sure to exist */
} Sample;

static int word_is(const char *at, uint64_t word)
{
    return memcmp(at, &word, sizeof word) == 0;
}

static Py_ssize_t impl_offset(const Sample *samples, Py_ssize_t count)
{
    Py_ssize_t last = torch.tensor->tp_basicsize - (Py_ssize_t)sizeof(uint64_t);
    for (Py_ssize_t at = sizeof(PyObject); at <= last; at += sizeof(uint64_t)) {
        Py_ssize_t i = 0;
        while (i < count && word_is(samples[i].object + at, (uint64_t)(uintptr_t)samples[i].impl))
            i++;
        if (i == count)
            return at;
    }
    return 0;
}

static Py_ssize_t keyset_offset(const Sample *samples, Py_ssize_t count)
{
    for (size_t at = 0; at + sizeof(uint64_t) <= samples[0].size; at += sizeof(uint64_t)) {
        Py_ssize_t i = 0;
        while (i < count && word_is(samples[i].impl + at, samples[i].keyset))
            i++;
        if (i == count)
            return (Py_ssize_t)at;
    }
    return 0;
}

/*
 * How far to look. Small tensors keep sizes and strides (five each) inside, and behind them stand at least offset,
 * element count, dtype, device and the set itself: so that much is there, wherever the set is.
 */
enum { LOOK_BEHIND_SIZES = (5 + 5 + 2 + 4) * 8, LOOK_AT_MOST = 512 };

static int read_sample(PyObject *item, Sample *sample)
{
    PyObject *tensor, *keyset, *impl;
    View view;
    if (!PyArg_ParseTuple(item, "OOO", &tensor, &keyset, &impl))
        return 0;
    if (Py_TYPE(tensor) != torch.tensor || torch.exchange->view_of(tensor, &view) != 0)
        return 0;
    sample->object = (const char *)tensor;
    sample->keyset = PyLong_AsUnsignedLongLong(keyset);
    sample->impl = PyLong_AsVoidPtr(impl);
    uintptr_t sizes_at = (uintptr_t)view.sizes - (uintptr_t)sample->impl;
    sample->size = sizes_at < LOOK_AT_MOST ? sizes_at + LOOK_BEHIND_SIZES : 0;
    return !PyErr_Occurred();
}

enum { MOST_SAMPLES = 16 };

PyDoc_STRVAR(calibrate_doc, "calibrate(samples, /)\n--\n\n"
    "Find where tensors keep their dispatch-key set, from a list of (tensor, set, address); whether it was found.\n"
    "Without it, or with an empty list, torch is asked for the set of each tensor.");

static PyObject *calibrate(PyObject *Py_UNUSED(module), PyObject *list)
{
    Sample samples[MOST_SAMPLES];
    torch.impl_at = 0;
    if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) > MOST_SAMPLES || torch.exchange == NULL)
        return PyErr_Format(PyExc_TypeError, "calibrate takes a list of at most %d samples, after bind", MOST_SAMPLES);
    Py_ssize_t count = PyList_GET_SIZE(list);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!read_sample(PyList_GET_ITEM(list, i), &samples[i]))
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "sample %zd is no tensor", i);
    Py_ssize_t impl_at = count == 0 ? 0 : impl_offset(samples, count);
    torch.keyset_at = impl_at == 0 ? 0 : keyset_offset(samples, count);
    torch.impl_at = torch.keyset_at == 0 ? 0 : impl_at;
    return PyBool_FromLong(torch.impl_at != 0);
}

PyDoc_STRVAR(pack_doc, "pack(args, kwargs, receiver, overlap, /)\n--\n\n"
    "A call as (bytes, objects): two calls with equal keys have equal ones. None where C cannot judge the call.");

static PyObject *pack(PyObject *Py_UNUSED(module), PyObject *const *call, Py_ssize_t count)
{
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "pack takes args, kwargs, receiver, overlap");
    Pack pack;
    if (!pack_call(&pack, call[0], call[1], call[2] == Py_True, call[3] == Py_True))
        Py_RETURN_NONE;
    PyObject *objects = PyTuple_New(pack.object_count);
    for (int i = 0; objects != NULL && i < pack.object_count; i++)
        PyTuple_SET_ITEM(objects, i, Py_NewRef(pack.objects[i]));
    drop_objects(&pack);
    if (objects == NULL)
        return NULL;
    return Py_BuildValue("y#N", (char *)pack.words, (Py_ssize_t)pack.word_count * 8, objects);
}

PyDoc_STRVAR(part_doc, "part(value, /)\n--\n\n"
    "One argument as bytes, without its objects; None where C cannot judge it.");

static PyObject *part(PyObject *Py_UNUSED(module), PyObject *value)
{
    Pack pack = {.word_count = 0};
    int judged = torch.exchange != NULL && pack_value(&pack, value);
    drop_objects(&pack);
    if (judged)
        return PyBytes_FromStringAndSize((char *)pack.words, (Py_ssize_t)pack.word_count * 8);
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_O, bind_doc},
    {"calibrate", calibrate, METH_O, calibrate_doc},
    {"pack", (PyCFunction)(void (*)(void))pack, METH_FASTCALL, pack_doc},
    {"part", part, METH_O, part_doc},
    {"use_driver", use_driver, METH_VARARGS, use_driver_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shapedispatch._hotpath",
    .m_doc = "The hit path in C; see hotpath.py.",
    .m_size = -1,
    .m_methods = functions,
};

static int intern_names(void)
{
    torch.is_compiling_flag = PyUnicode_InternFromString("_is_compiling_flag");
    torch.current_level = PyUnicode_InternFromString("_current_level");
    torch.raw_repr = PyUnicode_InternFromString("raw_repr");
    torch.fill_memory = PyUnicode_InternFromString("fill_uninitialized_memory");
    torch.dataclass_fields = PyUnicode_InternFromString("__dataclass_fields__");
    return torch.is_compiling_flag && torch.current_level && torch.raw_repr && torch.fill_memory
        && torch.dataclass_fields;
}

PyMODINIT_FUNC PyInit__hotpath(void)
{
#ifdef Py_GIL_DISABLED
    PyErr_SetString(PyExc_ImportError, "shapedispatch's C road relies on the GIL, which this Python is built without");
    return NULL;
#endif
    if (sizeof(void *) != sizeof(uint64_t)) {
        PyErr_SetString(PyExc_ImportError, "shapedispatch's C road is written for 64-bit processors");
        return NULL;
    }
    if (PyType_Ready(&LinkType) < 0 || PyType_Ready(&RoadType) < 0 || PyType_Ready(&PlanType) < 0 || !intern_names())
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddType(module, &RoadType) < 0 || PyModule_AddType(module, &LinkType) < 0
        || PyModule_AddType(module, &PlanType) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
