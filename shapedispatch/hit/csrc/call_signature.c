/* A call signed into words and objects, as keys/key.py makes a key of it. */

/* -------------------------------------------------------------------------------------------------- a call in words */

/* Each level of a nested argument takes a word, so that the words bound the depth, too. */
enum { MOST_WORDS = 512, MOST_OBJECTS = 32, MOST_TENSORS = 64, BEFORE_SIZES = 3 /* words of a tensor */ };

/* The first word of each part of a call says what follows, so that no two different calls are signed alike. */
enum {
    TENSOR = 1, INT, FLOAT, COMPLEX, SINGLETON, IDENTICAL, EQUAL, KIND, SEQUENCE, DICT, SLICE, SAME, OVERLAP, FUNCTION,
    INSTANCE
};

/* Which tensor stood where, and the addresses that its elements lie in. */
typedef struct {
    const PyObject *tensor;
    uint64_t start, end;
    Device device;
    int at;                             /* of its first word */
} Place;

typedef struct {
    int word_count, object_count, tensor_count;
    int overlap;
    uint64_t words[MOST_WORDS];
    PyObject *objects[MOST_OBJECTS];    /* strong references; never to anything that holds a tensor */
    Place tensors[MOST_TENSORS];
} CallSignature;

/* All of these return whether C can judge the call. A Python error may be set where not; sign_call drops it. */

static int push(CallSignature *sig, uint64_t word)
{
    if (sig->word_count == MOST_WORDS)
        return 0;
    sig->words[sig->word_count++] = word;
    return 1;
}

static int push_all(CallSignature *sig, const int64_t *numbers, int count)
{
    for (int i = 0; i < count; i++)
        if (!push(sig, (uint64_t)numbers[i]))
            return 0;
    return 1;
}

static uint64_t tagged(int tag, uint64_t low)
{
    return (uint64_t)tag << 56 | low;
}

static int hold(CallSignature *sig, PyObject *object)
{
    if (sig->object_count == MOST_OBJECTS)
        return 0;
    Py_INCREF(object);
    sig->objects[sig->object_count++] = object;
    return 1;
}

static void drop_objects(CallSignature *sig)
{
    for (int i = 0; i < sig->object_count; i++)
        Py_DECREF(sig->objects[i]);
    sig->object_count = 0;
}

/* ------------------------------------------------------------------------------------------ the state around a call */

/* None and False are 0; numbers are themselves, dtypes (which live for ever) their address; texts are short ones. */
static int word_of(PyObject *answer, uint64_t *word)
{
    Py_ssize_t length = 0;
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
    const char *letters = PyUnicode_CheckExact(answer) ? PyUnicode_AsUTF8AndSize(answer, &length) : NULL;
    if (letters == NULL || length > 7)
        return 0;                       /* torch's names of precisions are at most seven letters */
    *word = tagged((int)length, 0);
    memcpy(word, letters, (size_t)length);
    return 1;
}

static int take_word(PyObject *answer, uint64_t *word)
{
    int supported = answer != NULL && word_of(answer, word);
    Py_XDECREF(answer);
    return supported;
}

static int word_from(const Probe *probe, uint64_t *word)
{
    if (probe->symbol == NULL)
        return take_word(ask(probe), word);
    *word = probe->symbol->read(probe->symbol);
    return 1;
}

static int push_answer(CallSignature *sig, PyObject *answer)
{
    uint64_t word;
    return take_word(answer, &word) && push(sig, word);
}

static int no_modes_on(void)
{
    uint64_t word;
    for (int i = 0; i < torch.no_modes.count; i++)
        if (!word_from(&torch.no_modes.probes[i], &word) || word != 0)
            return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(torch.hook_tables); i++)
        if (!PyDict_Check(PyTuple_GET_ITEM(torch.hook_tables, i))
            || PyDict_GET_SIZE(PyTuple_GET_ITEM(torch.hook_tables, i)) != 0)
            return 0;
    static SeenVariable compiling, level;
    return !variable_is_at_least(torch.compiler_names, torch.is_compiling_flag, 1, &compiling)
        && !variable_is_at_least(torch.forward_names, torch.current_level, 0, &level);
}

/* Which devices cast, to what, and whether casts are remembered. */
static int sign_autocast(CallSignature *sig)
{
    uint64_t on = 0, word;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(torch.autocast_devices); i++) {
        PyObject *device = PyTuple_GET_ITEM(torch.autocast_devices, i);
        if (!take_word(PyObject_CallOneArg(torch.autocast_enabled, device), &word))
            return 0;
        if (word != 0) {
            on |= (uint64_t)1 << i;
            if (!push_answer(sig, PyObject_CallOneArg(torch.autocast_dtype, device)))
                return 0;
        }
    }
    /* Last, so that it also says how many words stand before it. */
    return push_answer(sig, ask(&torch.autocast_cache)) && push(sig, tagged(SEQUENCE, on));
}

static int sign_determinism(CallSignature *sig)
{
    return push_answer(sig, ask(&torch.warn_only))
        && push_answer(sig, PyObject_GetAttr(torch.determinism, torch.fill_memory));
}

static int sign_switch(CallSignature *sig, const Probe *probe, int (*sign_details)(CallSignature *))
{
    uint64_t on;
    return word_from(probe, &on) && push(sig, on) && (on == 0 || sign_details(sig));
}

static int sign_equal(CallSignature *sig, PyObject *object);

/* The device of `torch.set_default_device`, where that is all that watches the call. */
static int sign_default_device(CallSignature *sig)
{
    if (sig->words[sig->word_count - 1] != 1)
        return 0;
    PyObject *mode = ask(&torch.function_mode), *device = NULL;
    if (mode != NULL && (PyObject *)Py_TYPE(mode) == torch.device_context)
        device = PyObject_GetAttr(mode, torch.device_name);
    int supported = device != NULL && Py_TYPE(device) == torch.device && sign_equal(sig, device);
    Py_XDECREF(mode);
    Py_XDECREF(device);
    return supported;
}

static int sign_ambient(CallSignature *sig)
{
    if (!no_modes_on())
        return 0;
    uint64_t word;
    for (int i = 0; i < torch.keyed.count; i++)
        if (!word_from(&torch.keyed.probes[i], &word) || !push(sig, word))
            return 0;
    return sign_switch(sig, &torch.function_modes, sign_default_device)
        && sign_switch(sig, &torch.any_autocast, sign_autocast)
        && sign_switch(sig, &torch.deterministic, sign_determinism);
}

/* ------------------------------------------------------------------------------------------------------- one tensor */

static int note_tensor(CallSignature *sig, const PyObject *tensor, const View *view, uint64_t start)
{
    if (sig->tensor_count == MOST_TENSORS)
        return 0;
    uint64_t end = sig->overlap ? end_of(view, start) : start;
    sig->tensors[sig->tensor_count++] = (Place){tensor, start, end, view->device, sig->word_count};
    return 1;
}

static int push_dtype(CallSignature *sig, PyObject *tensor, Dtype dtype)
{
    return !has_small_dtype(dtype) || push_answer(sig, torch.dtype_of->get(tensor, torch.dtype_of->closure));
}

static int sign_tensor(CallSignature *sig, PyObject *tensor)
{
    uint64_t keyset, grad, dtype = 0, device;
    View view;
    /* The view comes last: it points into the tensor, and nothing else may run before it is copied. */
    if (!keyset_of(tensor, &keyset) || !grad_of(tensor, &grad) || !view_of(tensor, keyset, &view, 1)
        || view.ndim > 64 || (view.ndim > 0 && view.strides == NULL))
        return 0;
    memcpy(&dtype, &view.dtype, sizeof view.dtype);
    memcpy(&device, &view.device, sizeof device);
    uint64_t start = (uint64_t)(uintptr_t)view.data + view.byte_offset;
    if (elements_of(&view) != 0 && may_be_freed(tensor, keyset, &view, start))
        return 0;                       /* whether a tensor without memory can be keyed is for Python to say */
    if (!note_tensor(sig, tensor, &view, start))
        return 0;
    uint64_t parameter = Py_TYPE(tensor) == torch.parameter;
    uint64_t first = parameter << 52 | grad << 48 | (start & 15) << 40 | (uint64_t)view.ndim << 32 | dtype;
    return push(sig, tagged(TENSOR, first)) && push(sig, device) && push(sig, keyset)
        && push_all(sig, view.sizes, view.ndim) && push_all(sig, view.strides, view.ndim)
        && push_dtype(sig, tensor, view.dtype);
}

/* Which tensors are one object: the first place of each, as key._same has it. */
static int sign_same(CallSignature *sig)
{
    for (int i = 1; i < sig->tensor_count; i++) {
        int j = 0;
        while (sig->tensors[j].tensor != sig->tensors[i].tensor)
            j++;
        if (j < i && !push(sig, tagged(SAME, (uint64_t)(i * MOST_TENSORS + j))))
            return 0;
    }
    return 1;
}

/* Which tensors share memory and how far apart they begin, as tree.overlap has it. */
static int sign_overlap(CallSignature *sig)
{
    for (int i = 0; sig->overlap && i < sig->tensor_count; i++)
        for (int j = i + 1; j < sig->tensor_count; j++) {
            Place a = sig->tensors[i], b = sig->tensors[j];
            uint64_t which = tagged(OVERLAP, (uint64_t)(i * MOST_TENSORS + j));
            if (memcmp(&a.device, &b.device, sizeof a.device) == 0 && a.start < b.end && b.start < a.end
                && !(push(sig, which) && push(sig, b.start - a.start)))
                return 0;
        }
    return 1;
}

/* -------------------------------------------------------------------------------------------------- other arguments */

static int sign_value(CallSignature *sig, PyObject *value);

/* Of instance_signature.c. */
static int sign_kind(CallSignature *sig, PyTypeObject *type);
static int sign_instance(CallSignature *sig, PyObject *value);

/* An object that is only equal to itself. */
static int sign_identical(CallSignature *sig, int tag, PyObject *object)
{
    return push(sig, tagged(tag, 0)) && push(sig, (uint64_t)(uintptr_t)object) && hold(sig, object);
}

/* An object of a type whose equality runs no Python code; it is compared when its words are equal. */
static int sign_equal(CallSignature *sig, PyObject *object)
{
    Py_hash_t hash = PyObject_Hash(object);
    return hash != -1 && push(sig, tagged(EQUAL, 0)) && push(sig, (uint64_t)(uintptr_t)Py_TYPE(object))
        && push(sig, (uint64_t)hash) && hold(sig, object);
}

static int sign_int(CallSignature *sig, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow ? sign_equal(sig, value) : push(sig, tagged(INT, 0)) && push(sig, (uint64_t)number);
}

/* The bits, which tell 0.0 from -0.0, and a NaN from one with the other sign: Python has no key for that. */
static uint64_t float_bits(double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static int sign_complex(CallSignature *sig, PyObject *value)
{
    Py_complex number = PyComplex_AsCComplex(value);
    return push(sig, tagged(COMPLEX, 0)) && push(sig, float_bits(number.real)) && push(sig, float_bits(number.imag));
}

/* What is inside a container is held while it is signed: asking torch may let other code run. */
static int sign_item(CallSignature *sig, PyObject *item)
{
    Py_INCREF(item);
    int supported = sign_value(sig, item);
    Py_DECREF(item);
    return supported;
}

static int sign_sequence(CallSignature *sig, PyObject *values)
{
    Py_ssize_t size = PySequence_Fast_GET_SIZE(values);
    if (!push(sig, tagged(SEQUENCE, (uint64_t)size)) || !push(sig, (uint64_t)(uintptr_t)Py_TYPE(values)))
        return 0;
    for (Py_ssize_t i = 0; i < size; i++)
        if (size != PySequence_Fast_GET_SIZE(values) || !sign_item(sig, PySequence_Fast_GET_ITEM(values, i)))
            return 0;
    return 1;
}

static int sign_items(CallSignature *sig, PyObject *dict)
{
    Py_ssize_t place = 0, size = PyDict_GET_SIZE(dict);
    PyObject *name, *value;
    while (PyDict_Next(dict, &place, &name, &value))
        if (!sign_item(sig, name) || !sign_item(sig, value) || PyDict_GET_SIZE(dict) != size)
            return 0;
    return 1;
}

static int sign_slice(CallSignature *sig, PyObject *value)
{
    PySliceObject *slice = (PySliceObject *)value;
    return push(sig, tagged(SLICE, 0)) && sign_value(sig, slice->start) && sign_value(sig, slice->stop)
        && sign_value(sig, slice->step);
}

/* Types that are met less often than tensors and numbers. */
static int sign_other(CallSignature *sig, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyUnicode_Type || type == &PyBytes_Type || type == torch.device)
        return sign_equal(sig, value);
    if (type == &PyList_Type || type == &PyTuple_Type || type == torch.size)
        return sign_sequence(sig, value);
    if (type == &PyDict_Type)
        return push(sig, tagged(DICT, (uint64_t)PyDict_GET_SIZE(value))) && sign_items(sig, value);
    if (type == &PySlice_Type)
        return sign_slice(sig, value);
    if (type == &PyComplex_Type)
        return sign_complex(sig, value);
    if (type == torch.dtype || type == torch.layout || type == torch.memory_format || type == &PyType_Type)
        return sign_identical(sig, IDENTICAL, value);
    return PyType_IsSubtype(type, torch.module) ? sign_kind(sig, type) : sign_instance(sig, value);
}

static int sign_value(CallSignature *sig, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == torch.tensor || type == torch.parameter)
        return sign_tensor(sig, value);
    if (type == &PyLong_Type)
        return sign_int(sig, value);
    if (value == Py_None || value == Py_True || value == Py_False || value == Py_Ellipsis)
        return push(sig, tagged(SINGLETON, 0)) && push(sig, (uint64_t)(uintptr_t)value);
    if (type == &PyFloat_Type)
        return push(sig, tagged(FLOAT, 0)) && push(sig, float_bits(PyFloat_AS_DOUBLE(value)));
    return sign_other(sig, value);
}

/* --------------------------------------------------------------------------------------------------------- the call */

static int sign_arguments(CallSignature *sig, PyObject *args, PyObject *kwargs, int receiver)
{
    Py_ssize_t count = PyTuple_GET_SIZE(args), first = receiver && count > 0;
    uint64_t shape = (uint64_t)count << 24 | (uint64_t)PyDict_GET_SIZE(kwargs) << 2;
    if (!push(sig, shape | (uint64_t)first << 1 | (uint64_t)sig->overlap)
        || (first && !sign_kind(sig, Py_TYPE(PyTuple_GET_ITEM(args, 0)))))
        return 0;
    for (Py_ssize_t i = first; i < count; i++)
        if (!sign_value(sig, PyTuple_GET_ITEM(args, i)))
            return 0;
    return sign_items(sig, kwargs);
}

/* The whole call. Where this returns 0 nothing is held and no error is set; else drop_objects is the caller's. */
static int sign_call(CallSignature *sig, PyObject *args, PyObject *kwargs, int receiver, int overlap)
{
    sig->word_count = sig->object_count = sig->tensor_count = 0;
    sig->overlap = overlap;
    if (torch.exchange != NULL && PyTuple_CheckExact(args) && PyDict_CheckExact(kwargs)
        && sign_ambient(sig) && sign_arguments(sig, args, kwargs, receiver)
        && sign_same(sig) && sign_overlap(sig))
        return 1;
    PyErr_Clear();
    drop_objects(sig);
    return 0;
}
