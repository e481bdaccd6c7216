/* A kernel's call: its arguments bound to its parameters, and packed as triton_key.py keys them. */

/* -------------------------------------------------------------------------------------------- a kernel's parameters */

/* What is packed of an argument: its class, its value (of a dim, say), a constant's value; of what is filled none. */
enum { CLASS = 'c', VALUE = 'v', CONSTANT = 'k', FILLED = 'f' };
enum { MOST_FORMALS = 128 };

typedef struct {
    PyObject *name;                     /* interned */
    PyObject *fallback;                 /* the default; NULL where there is none */
    int kind, specialize, align;        /* the last two: what `do_not_specialize` leaves of Triton's classes */
    int shape, stride;                  /* whether a tensor's are packed, because something reads them */
} Formal;

/* All that a key is made by. Never changed: a key of another form is another of these. */
typedef struct {
    PyObject_VAR_HEAD
    Probe here;                         /* the device that kernels are launched on now */
    int asks_here;                      /* whether it is asked at each call; else where no tensor says where it is */
    int by_position, form;              /* parameters that a position can give; whether the call's form is packed */
    PyObject *outer;                    /* a tuple of functions: what they answer is packed */
    PyTypeObject *dtype;                /* Triton's, whose instances are constants; NULL without */
    Formal formals[1];
} Signature;

static Py_ssize_t formal_count(const Signature *signature)
{
    return Py_SIZE(signature);
}

static int signature_traverse(PyObject *self, visitproc visit, void *arg)
{
    Signature *signature = (Signature *)self;
    Py_VISIT(signature->here.question);
    Py_VISIT(signature->outer);
    Py_VISIT((PyObject *)signature->dtype);
    for (Py_ssize_t i = 0; i < formal_count(signature); i++) {
        Py_VISIT(signature->formals[i].name);
        Py_VISIT(signature->formals[i].fallback);
    }
    return 0;
}

static int signature_clear(PyObject *self)
{
    Signature *signature = (Signature *)self;
    Py_CLEAR(signature->here.question);
    Py_CLEAR(signature->outer);
    Py_CLEAR(signature->dtype);
    for (Py_ssize_t i = 0; i < formal_count(signature); i++) {
        Py_CLEAR(signature->formals[i].name);
        Py_CLEAR(signature->formals[i].fallback);
    }
    return 0;
}

static void signature_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    signature_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* (name, kind, specialize, align, shape, stride, default or nothing) */
static int take_formal(PyObject *given, Formal *formal)
{
    PyObject *fallback = NULL;
    if (!PyArg_ParseTuple(given, "UCpppp|O", &formal->name, &formal->kind, &formal->specialize, &formal->align,
            &formal->shape, &formal->stride, &fallback)) {
        formal->name = NULL;
        return 0;
    }
    Py_INCREF(formal->name);
    PyUnicode_InternInPlace(&formal->name);
    formal->fallback = Py_XNewRef(fallback);
    if (strchr("cvkf", formal->kind) != NULL)
        return 1;
    PyErr_Format(PyExc_ValueError, "%R is no parameter", given);
    return 0;
}

static PyObject *signature_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"formals", "here", "by_position", "form", "outer", "dtype", "asks_here", NULL};
    PyObject *formals, *here, *outer, *dtype;
    int by_position, form, asks_here;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OipO!Op", names, &PyTuple_Type, &formals, &here, &by_position,
            &form, &PyTuple_Type, &outer, &dtype, &asks_here))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(formals);
    if (count > MOST_FORMALS || by_position < 0 || by_position > count)
        return PyErr_Format(PyExc_ValueError, "more than %d parameters, or fewer than by position", MOST_FORMALS);
    Signature *signature = (Signature *)type->tp_alloc(type, count);
    if (signature == NULL)
        return NULL;
    signature->by_position = by_position;
    signature->form = form;
    signature->asks_here = asks_here;
    signature->outer = Py_NewRef(outer);
    signature->dtype = PyType_Check(dtype) ? (PyTypeObject *)Py_NewRef(dtype) : NULL;
    int taken = take_question(here, "here", &signature->here);
    for (Py_ssize_t i = 0; taken && i < count; i++)
        taken = take_formal(PyTuple_GET_ITEM(formals, i), &signature->formals[i]);
    if (!taken)
        Py_CLEAR(signature);
    return (PyObject *)signature;
}

static PyTypeObject SignatureType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch.hit._native.Signature",
    .tp_doc = "Signature(formals, here, by_position, form, outer, dtype, asks_here)\n--\n\n"
              "What a kernel's calls are packed by. A formal is (name, kind, specialize, align, shape, stride) with\n"
              "or without a default, of kind c (its class), v (its value), k (a constant) or f (given by a config).",
    .tp_basicsize = offsetof(Signature, formals),
    .tp_itemsize = sizeof(Formal),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = signature_new,
    .tp_dealloc = signature_dealloc,
    .tp_traverse = signature_traverse,
    .tp_clear = signature_clear,
};

/* ------------------------------------------------------------------------------------------------ binding arguments */

typedef struct {
    PyObject *values[MOST_FORMALS];     /* borrowed: from the caller, or the signature's defaults; NULL where filled */
    uint64_t bits[MOST_FORMALS];        /* addresses of tensors, and integers, as they were packed */
    char known[MOST_FORMALS];           /* whether there are such */
    PyObject *const *arguments;         /* the call's, as it was made */
    Py_ssize_t by_position;
    PyObject *names;                    /* of those behind: a tuple, or NULL */
    int64_t here;                       /* the device that the tensors are on, or that was asked for */
    PyObject *sized;                    /* what a grid's function came to, where Python is to launch all the same */
    Pack *pack;
} Call;

enum { NOWHERE = INT64_MIN };           /* as `here`: not known yet */

static Py_ssize_t name_count(const Call *call)
{
    return call->names == NULL ? 0 : PyTuple_GET_SIZE(call->names);
}

/* Which parameter a keyword names, looked for from `first` on, since keywords mostly come in order; -1 for none. */
static Py_ssize_t formal_named(const Signature *signature, PyObject *name, Py_ssize_t first)
{
    Py_ssize_t count = formal_count(signature);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t place = first + i < count ? first + i : first + i - count;
        if (signature->formals[place].name == name)
            return place;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyUnicode_Compare(signature->formals[i].name, name) == 0)
            return i;
    return -1;
}

static int bind_keywords(const Signature *signature, Call *call)
{
    Py_ssize_t place = call->by_position - 1;
    for (Py_ssize_t i = 0; i < name_count(call); i++) {
        Py_ssize_t found = formal_named(signature, PyTuple_GET_ITEM(call->names, i), place + 1);
        if (found < 0)
            continue;                   /* an option such as num_warps */
        if (call->values[found] != NULL)
            return 0;                   /* given twice */
        call->values[place = found] = call->arguments[call->by_position + i];
    }
    return 1;
}

/* 0 where the call does not bind, or gives what configs give: what comes of that is Python's to say. */
static int bind_call(const Signature *signature, Call *call)
{
    Py_ssize_t count = formal_count(signature);
    if (call->by_position > signature->by_position)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        call->values[i] = i < call->by_position ? call->arguments[i] : NULL;
    if (!bind_keywords(signature, call))
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        const Formal *formal = &signature->formals[i];
        if (formal->kind == FILLED ? call->values[i] != NULL
                                   : call->values[i] == NULL && (call->values[i] = formal->fallback) == NULL)
            return 0;
    }
    return 1;
}

/* ------------------------------------------------------------------------------------------------ packing arguments */

/* A tensor's device as `get_device` numbers it; one of another kind is not judged. */
static int device_number(Device device, int64_t *number)
{
    *number = device.type == CPU ? -1 : device.index;
    return device.type == CPU || device.type == CUDA;
}

static int push_all(Pack *pack, const int64_t *numbers, int count)
{
    for (int i = 0; i < count; i++)
        if (!push(pack, (uint64_t)numbers[i]))
            return 0;
    return 1;
}

/* All tensors are on one device, which the first one's words begin with; a launch sees to it that it is current. */
static int is_here(Call *call, int64_t device)
{
    if (call->here != NOWHERE)
        return call->here == device;
    call->here = device;
    return push(call->pack, (uint64_t)device);
}

/* Its dtype, its keys, whether its address is a multiple of 16, and what is read of it. */
static int pack_pointer(Call *call, const Formal *formal, PyObject *tensor, uint64_t *address)
{
    uint64_t keyset, dtype = 0;
    int64_t device;
    View view;
    Pack *pack = call->pack;
    /* As in pack_tensor the view comes last. */
    if (!keyset_of(tensor, &keyset) || !view_of(tensor, keyset, &view, formal->shape || formal->stride))
        return 0;
    *address = (uint64_t)(uintptr_t)view.data + view.byte_offset;
    /* A tensor without elements has no address, whatever its view says; nor has one whose storage was freed. */
    int sized = view.sizes != NULL && view.ndim > 0;    /* without sizes an address tells of elements */
    if (!device_number(view.device, &device) || *address < 4096 || (sized && elements_of(&view) == 0)
        || view.ndim > 64 || (sized && view.strides == NULL) || !is_here(call, device))
        return 0;
    memcpy(&dtype, &view.dtype, sizeof view.dtype);
    uint64_t off = formal->specialize && formal->align && (*address & 15) != 0;
    if (!push(pack, tagged(TENSOR, off << 40 | (uint64_t)view.ndim << 32 | dtype)) || !push(pack, keyset))
        return 0;
    if (formal->shape && !push_all(pack, view.sizes, view.ndim))
        return 0;
    if (formal->stride && !push_all(pack, view.strides, view.ndim))
        return 0;
    return push_dtype(pack, tensor, view.dtype);
}

/* Triton's class of an integer, as specialize._integer has it. */
static uint64_t class_of(const Formal *formal, int64_t number)
{
    uint64_t wide = number < INT32_MIN || number > INT32_MAX ? 4 : 0;
    if (!formal->specialize)
        return wide;
    if (number == 1)
        return 1;
    return wide + (formal->align && (number & 15) == 0 ? 2 : 3);
}

static int pack_number(Call *call, const Formal *formal, PyObject *value, uint64_t *bits)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    *bits = (uint64_t)number;
    if (overflow)
        return 0;
    if (formal->kind == CLASS)
        return push(call->pack, tagged(KIND, class_of(formal, number)));
    return push(call->pack, tagged(INT, 0)) && push(call->pack, *bits);
}

/* What is neither a tensor nor an integer: of these only the type counts, unless the value does. */
static int pack_plain(Call *call, const Signature *signature, const Formal *formal, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (formal->kind == CLASS)
        return (type == &PyFloat_Type || type == &PyBool_Type || value == Py_None)
            && push(call->pack, tagged(SINGLETON, 0)) && push(call->pack, (uint64_t)(uintptr_t)type);
    if (type == signature->dtype)
        return pack_identical(call->pack, IDENTICAL, value);
    return pack_value(call->pack, value);
}

static int pack_argument(Call *call, const Signature *signature, Py_ssize_t i)
{
    const Formal *formal = &signature->formals[i];
    PyObject *value = call->values[i];
    PyTypeObject *type = Py_TYPE(value);
    int is_tensor = type == torch.tensor || type == torch.parameter;
    call->known[i] = (char)(formal->kind != CONSTANT && (is_tensor || type == &PyLong_Type));
    if (!call->known[i])
        return pack_plain(call, signature, formal, value);
    return is_tensor ? pack_pointer(call, formal, value, &call->bits[i])
                     : pack_number(call, formal, value, &call->bits[i]);
}

static int pack_arguments_of(Call *call, const Signature *signature)
{
    for (Py_ssize_t i = 0; i < formal_count(signature); i++)
        if (signature->formals[i].kind != FILLED && !pack_argument(call, signature, i))
            return 0;
    return 1;
}

static int pack_here(Call *call, const Signature *signature)
{
    uint64_t here;
    return call->here != NOWHERE || (take_word(ask(&signature->here), &here) && is_here(call, (int64_t)here));
}

/* Keywords that no parameter has, and with the signature's `form` how each argument was passed. */
static int pack_keywords(Call *call, const Signature *signature)
{
    Pack *pack = call->pack;
    if (signature->form && !push(pack, tagged(SEQUENCE, (uint64_t)call->by_position)))
        return 0;
    for (Py_ssize_t i = 0; i < name_count(call); i++) {
        PyObject *name = PyTuple_GET_ITEM(call->names, i);
        int is_option = formal_named(signature, name, 0) < 0;
        if ((is_option || signature->form) && !pack_equal(pack, name))
            return 0;
        if (is_option && !pack_value(pack, call->arguments[call->by_position + i]))
            return 0;
    }
    return 1;
}

static int pack_outer(Call *call, const Signature *signature)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(signature->outer); i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(signature->outer, i));
        int judged = answer != NULL && pack_value(call->pack, answer);
        Py_XDECREF(answer);
        if (!judged)
            return 0;
    }
    return 1;
}

/* As pack_call. */
static int pack_kernel_call(Call *call, const Signature *signature)
{
    Pack *pack = call->pack;
    call->here = NOWHERE;
    call->sized = NULL;
    pack->word_count = pack->object_count = pack->tensor_count = pack->overlap = 0;
    if (torch.exchange != NULL && bind_call(signature, call) && (!signature->asks_here || pack_here(call, signature))
        && pack_arguments_of(call, signature) && pack_here(call, signature)
        && (call->names == NULL || pack_keywords(call, signature)) && pack_outer(call, signature))
        return 1;
    PyErr_Clear();
    drop_objects(pack);
    return 0;
}
