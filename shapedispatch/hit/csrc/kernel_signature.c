/* A kernel's call: its arguments bound to its parameters, and signed as specialize.py keys them. */

/* -------------------------------------------------------------------------------------------- a kernel's parameters */

/* What is signed of an argument: its class, its value (of a dim, say), a constant's value; of a meta-parameter none. */
enum { CLASS = 'c', VALUE = 'v', CONSTANT = 'k', META = 'f' };
enum { MOST_KEY_PARAMETERS = 128 };

typedef struct {
    PyObject *name;                     /* interned */
    PyObject *fallback;                 /* the default; NULL where there is none */
    int kind, specialize, align;        /* the last two: what `do_not_specialize` leaves of Triton's classes */
    int shape, stride;                  /* whether a tensor's are signed, because something reads them */
} KeyParameter;

/* All that a key is made by. Never changed: a key of another form is another of these. */
typedef struct {
    PyObject_VAR_HEAD
    Probe here;                         /* the device that kernels are launched on now */
    int asks_here;                      /* whether it is asked at each call; else where no tensor says where it is */
    int by_position, form;              /* parameters that a position can give; whether the call's form is signed */
    PyObject *global_readers;           /* a tuple of functions: what they answer is signed */
    PyObject *dtype;                    /* Triton's, a type whose instances are constants */
    KeyParameter key_parameters[1];
} KeySchema;

static Py_ssize_t key_parameter_count(const KeySchema *schema)
{
    return Py_SIZE(schema);
}

static int schema_traverse(PyObject *self, visitproc visit, void *arg)
{
    KeySchema *schema = (KeySchema *)self;
    Py_VISIT(schema->here.question);
    for (Py_ssize_t i = 0; i < key_parameter_count(schema); i++)
        Py_VISIT(schema->key_parameters[i].fallback);
    return visit_references(REFERENCES(schema, global_readers, dtype), visit, arg);
}

static void schema_dealloc(PyObject *self)
{
    KeySchema *schema = (KeySchema *)self;
    PyObject_GC_UnTrack(self);
    Py_CLEAR(schema->here.question);
    for (Py_ssize_t i = 0; i < key_parameter_count(schema); i++)
        clear_references(REFERENCES(&schema->key_parameters[i], name, fallback));
    clear_references(REFERENCES(schema, global_readers, dtype));
    Py_TYPE(self)->tp_free(self);
}

/* (name, kind, specialize, align, shape, stride, default or nothing) */
static int take_key_parameter(PyObject *given, KeyParameter *taken)
{
    PyObject *fallback = NULL;
    if (!PyArg_ParseTuple(given, "UCpppp|O", &taken->name, &taken->kind, &taken->specialize,
            &taken->align, &taken->shape, &taken->stride, &fallback)) {
        taken->name = NULL;
        return 0;
    }
    Py_INCREF(taken->name);
    PyUnicode_InternInPlace(&taken->name);
    taken->fallback = Py_XNewRef(fallback);
    return strchr("cvkf", taken->kind) != NULL
        || PyErr_Format(PyExc_ValueError, "%R is no parameter", given) != NULL;
}

static PyObject *schema_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key_parameters", "here", "by_position", "form", "global_readers", "dtype", "asks_here",
        NULL};
    PyObject *key_parameters, *here, *global_readers, *dtype;
    int by_position, form, asks_here;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OipO!Op", names, &PyTuple_Type, &key_parameters, &here,
            &by_position, &form, &PyTuple_Type, &global_readers, &dtype, &asks_here))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(key_parameters);
    if (count > MOST_KEY_PARAMETERS || by_position < 0 || by_position > count)
        return PyErr_Format(PyExc_ValueError, "more than %d parameters, or fewer than by position",
            MOST_KEY_PARAMETERS);
    KeySchema *schema = (KeySchema *)type->tp_alloc(type, count);
    if (schema == NULL)
        return NULL;
    schema->by_position = by_position;
    schema->form = form;
    schema->asks_here = asks_here;
    schema->global_readers = Py_NewRef(global_readers);
    schema->dtype = Py_NewRef(dtype);
    int taken = take_question(here, "here", &schema->here);
    for (Py_ssize_t i = 0; taken && i < count; i++)
        taken = take_key_parameter(PyTuple_GET_ITEM(key_parameters, i), &schema->key_parameters[i]);
    if (!taken)
        Py_CLEAR(schema);
    return (PyObject *)schema;
}

/* Without tp_clear: what it holds can be cleared, and one that is half gone would sign calls. */
static PyTypeObject KeySchemaType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.KeySchema",
    .tp_doc = "KeySchema(key_parameters, here, by_position, form, global_readers, dtype, asks_here)\n--\n\n"
              "What a kernel's calls are signed by. A parameter is (name, kind, specialize, align, shape, stride)\n"
              "with or without a default, of kind c (its class), v (its value), k (a constant), f (a meta-parameter).",
    .tp_basicsize = offsetof(KeySchema, key_parameters),
    .tp_itemsize = sizeof(KeyParameter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = schema_new,
    .tp_dealloc = schema_dealloc,
    .tp_traverse = schema_traverse,
};

/* ------------------------------------------------------------------------------------------------ binding arguments */

typedef struct {
    PyObject *values[MOST_KEY_PARAMETERS];      /* borrowed: the caller's, or the schema's defaults; NULL of META */
    uint64_t bits[MOST_KEY_PARAMETERS];         /* addresses of tensors, and integers, as they were signed */
    char known[MOST_KEY_PARAMETERS];            /* whether there are such */
    PyObject *const *arguments;         /* the call's, as it was made */
    Py_ssize_t by_position;
    PyObject *names;                    /* of those behind: a tuple, or NULL */
    int64_t here;                       /* the device that the tensors are on, or that was asked for */
    CallSignature *sig;
} Call;

enum { NOWHERE = INT64_MIN };           /* as `here`: not known yet */

static Py_ssize_t name_count(const Call *call)
{
    return call->names == NULL ? 0 : PyTuple_GET_SIZE(call->names);
}

/* Which parameter a keyword names, looked for from `first` on, since keywords mostly come in order; -1 for none. */
static Py_ssize_t key_parameter_named(const KeySchema *schema, PyObject *name, Py_ssize_t first)
{
    Py_ssize_t count = key_parameter_count(schema);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t place = first + i < count ? first + i : first + i - count;
        if (schema->key_parameters[place].name == name)
            return place;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyUnicode_Compare(schema->key_parameters[i].name, name) == 0)
            return i;
    return -1;
}

static int bind_keywords(const KeySchema *schema, Call *call)
{
    Py_ssize_t place = call->by_position - 1;
    for (Py_ssize_t i = 0; i < name_count(call); i++) {
        Py_ssize_t found = key_parameter_named(schema, PyTuple_GET_ITEM(call->names, i), place + 1);
        if (found < 0)
            continue;                   /* an option such as num_warps */
        if (call->values[found] != NULL)
            return 0;                   /* given twice */
        call->values[place = found] = call->arguments[call->by_position + i];
    }
    return 1;
}

/* 0 where the call does not bind, or gives a meta-parameter: what comes of that is Python's to say. */
static int bind_call(const KeySchema *schema, Call *call)
{
    Py_ssize_t count = key_parameter_count(schema);
    if (call->by_position > schema->by_position)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        call->values[i] = i < call->by_position ? call->arguments[i] : NULL;
    if (!bind_keywords(schema, call))
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        const KeyParameter *key_parameter = &schema->key_parameters[i];
        if (key_parameter->kind == META ? call->values[i] != NULL
                                   : call->values[i] == NULL && (call->values[i] = key_parameter->fallback) == NULL)
            return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------------------------------------ signing arguments */

/* All tensors are on one device, which the first one's words begin with; a launch sees to it that it is current. */
static int is_here(Call *call, int64_t device)
{
    if (call->here != NOWHERE)
        return call->here == device;
    call->here = device;
    return push(call->sig, (uint64_t)device);
}

/* Its dtype, its keys, whether its address is a multiple of 16, and what is read of it. */
static int sign_pointer(Call *call, const KeyParameter *key_parameter, PyObject *tensor, uint64_t *address)
{
    uint64_t keyset, dtype = 0;
    View view;
    CallSignature *sig = call->sig;
    /* As in sign_tensor the view comes last. */
    if (!keyset_of(tensor, &keyset) || !view_of(tensor, keyset, &view, key_parameter->shape || key_parameter->stride))
        return 0;
    *address = (uint64_t)(uintptr_t)view.data + view.byte_offset;
    int64_t device = view.device.type == CPU ? -1 : view.device.index;  /* as `get_device` numbers it */
    /* A tensor without elements has no address, whatever its view says; nor has one whose storage was freed. */
    int sized = view.sizes != NULL && view.ndim > 0;    /* without sizes an address shows that there are elements */
    if ((view.device.type != CPU && view.device.type != CUDA) || *address < 4096
        || (sized && (elements_of(&view) == 0 || view.strides == NULL)) || view.ndim > 64 || !is_here(call, device))
        return 0;
    memcpy(&dtype, &view.dtype, sizeof view.dtype);
    uint64_t off = key_parameter->specialize && key_parameter->align && (*address & 15) != 0;
    return push(sig, tagged(TENSOR, off << 40 | (uint64_t)view.ndim << 32 | dtype)) && push(sig, keyset)
        && (!key_parameter->shape || push_all(sig, view.sizes, view.ndim))
        && (!key_parameter->stride || push_all(sig, view.strides, view.ndim))
        && push_dtype(sig, tensor, view.dtype);
}

/* Triton's class of an integer, as specialize._integer has it. */
static uint64_t class_of(const KeyParameter *key_parameter, int64_t number)
{
    uint64_t wide = number < INT32_MIN || number > INT32_MAX ? 4 : 0;
    if (!key_parameter->specialize)
        return wide;
    if (number == 1)
        return 1;
    return wide + (key_parameter->align && (number & 15) == 0 ? 2 : 3);
}

static int sign_number(Call *call, const KeyParameter *key_parameter, PyObject *value, uint64_t *bits)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    *bits = (uint64_t)number;
    if (overflow)
        return 0;
    if (key_parameter->kind == CLASS)
        return push(call->sig, tagged(KIND, class_of(key_parameter, number)));
    return push(call->sig, tagged(INT, 0)) && push(call->sig, *bits);
}

/* What is neither a tensor nor an integer: of these only the type counts, unless the value does. */
static int sign_plain(Call *call, const KeySchema *schema, const KeyParameter *key_parameter, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (key_parameter->kind == CLASS)
        return (type == &PyFloat_Type || type == &PyBool_Type || value == Py_None)
            && push(call->sig, tagged(SINGLETON, 0)) && push(call->sig, (uint64_t)(uintptr_t)type);
    if ((PyObject *)type == schema->dtype)
        return sign_identical(call->sig, IDENTICAL, value);
    return sign_value(call->sig, value);
}

static int sign_argument(Call *call, const KeySchema *schema, Py_ssize_t i)
{
    const KeyParameter *key_parameter = &schema->key_parameters[i];
    PyObject *value = call->values[i];
    PyTypeObject *type = Py_TYPE(value);
    int is_tensor = type == torch.tensor || type == torch.parameter;
    call->known[i] = (char)(key_parameter->kind != CONSTANT && (is_tensor || type == &PyLong_Type));
    if (!call->known[i])
        return sign_plain(call, schema, key_parameter, value);
    return is_tensor ? sign_pointer(call, key_parameter, value, &call->bits[i])
                     : sign_number(call, key_parameter, value, &call->bits[i]);
}

static int sign_arguments_of(Call *call, const KeySchema *schema)
{
    for (Py_ssize_t i = 0; i < key_parameter_count(schema); i++)
        if (schema->key_parameters[i].kind != META && !sign_argument(call, schema, i))
            return 0;
    return 1;
}

static int sign_here(Call *call, const KeySchema *schema)
{
    uint64_t here;
    return call->here != NOWHERE || (take_word(ask(&schema->here), &here) && is_here(call, (int64_t)here));
}

/* Keywords that no parameter has, and with the schema's `form` how each argument was passed. */
static int sign_keywords(Call *call, const KeySchema *schema)
{
    CallSignature *sig = call->sig;
    if (schema->form && !push(sig, tagged(SEQUENCE, (uint64_t)call->by_position)))
        return 0;
    for (Py_ssize_t i = 0; i < name_count(call); i++) {
        PyObject *name = PyTuple_GET_ITEM(call->names, i);
        int is_option = key_parameter_named(schema, name, 0) < 0;
        if (((is_option || schema->form) && !sign_equal(sig, name))
            || (is_option && !sign_value(sig, call->arguments[call->by_position + i])))
            return 0;
    }
    return 1;
}

static int sign_globals(Call *call, const KeySchema *schema)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(schema->global_readers); i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(schema->global_readers, i));
        int supported = answer != NULL && sign_value(call->sig, answer);
        Py_XDECREF(answer);
        if (!supported)
            return 0;
    }
    return 1;
}

/* As sign_call. */
static int sign_kernel_call(Call *call, const KeySchema *schema)
{
    CallSignature *sig = call->sig;
    call->here = NOWHERE;
    sig->word_count = sig->object_count = sig->tensor_count = sig->overlap = 0;
    if (torch.exchange != NULL && bind_call(schema, call) && (!schema->asks_here || sign_here(call, schema))
        && sign_arguments_of(call, schema) && sign_here(call, schema)
        && (call->names == NULL || sign_keywords(call, schema)) && sign_globals(call, schema))
        return 1;
    PyErr_Clear();
    drop_objects(sig);
    return 0;
}
