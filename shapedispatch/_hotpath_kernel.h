/* The hit path of a Triton kernel: binding its arguments, packing them as triton_key.py keys them, launching a plan. */

/* -------------------------------------------------------------------------------------------- a kernel's parameters */

/* What is packed of an argument: its class, its value (a dim, say), a constant's value; nothing where a config gives it. */
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
    static char *names[] = {"formals", "here", "by_position", "form", "outer", "dtype", NULL};
    PyObject *formals, *here, *outer, *dtype;
    int by_position, form;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OipO!O", names, &PyTuple_Type, &formals, &here, &by_position,
            &form, &PyTuple_Type, &outer, &dtype))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(formals);
    if (count > MOST_FORMALS || by_position < 0 || by_position > count)
        return PyErr_Format(PyExc_ValueError, "more than %d parameters, or fewer than by position", MOST_FORMALS);
    Signature *signature = (Signature *)type->tp_alloc(type, count);
    if (signature == NULL)
        return NULL;
    signature->by_position = by_position;
    signature->form = form;
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
    .tp_name = "shapedispatch._hotpath.Signature",
    .tp_doc = "Signature(formals, here, by_position, form, outer, dtype)\n--\n\n"
              "What a kernel's calls are packed by. A formal is (name, kind, specialize, align, shape, stride[, default])\n"
              "of kind c (its class), v (its value), k (a constant) or f (given by a config).",
    .tp_basicsize = offsetof(Signature, formals),
    .tp_itemsize = sizeof(Formal),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = signature_new,
    .tp_dealloc = signature_dealloc,
    .tp_traverse = signature_traverse,
    .tp_clear = signature_clear,
};

/* ------------------------------------------------------------------------------------------------- binding arguments */

typedef struct {
    PyObject *values[MOST_FORMALS];     /* borrowed: from the caller, or the signature's defaults; NULL where filled */
    uint64_t bits[MOST_FORMALS];        /* addresses of tensors, and integers, as they were packed */
    char known[MOST_FORMALS];           /* whether there are such */
    PyObject *const *arguments;         /* the call's, as it was made */
    Py_ssize_t by_position;
    PyObject *names;                    /* of those behind: a tuple, or NULL */
    Pack *pack;
} Call;

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

/* ------------------------------------------------------------------------------------------------- packing arguments */

enum { DLPACK_CPU = 1 };

/* A tensor's device as `get_device` numbers it; one of another kind is not judged. */
static int device_number(Device device, int64_t *number)
{
    *number = device.type == DLPACK_CPU ? -1 : device.index;
    return device.type == DLPACK_CPU || device.type == CUDA;
}

static int push_all(Pack *pack, const int64_t *numbers, int count)
{
    for (int i = 0; i < count; i++)
        if (!push(pack, (uint64_t)numbers[i]))
            return 0;
    return 1;
}

/* Its dtype, its keys, whether its address is a multiple of 16, and what is read of it. */
static int pack_pointer(Call *call, const Formal *formal, PyObject *tensor, int64_t here, uint64_t *address)
{
    uint64_t keyset, dtype = 0;
    int64_t device;
    View view;
    Pack *pack = call->pack;
    /* As in pack_tensor the view comes last. */
    if (!keyset_of(tensor, &keyset) || torch.exchange->view_of(tensor, &view) != 0)
        return 0;
    *address = (uint64_t)(uintptr_t)view.data + view.byte_offset;
    /* A tensor without elements has no address, whatever its view says; nor has one whose storage was freed. */
    if (!device_number(view.device, &device) || device != here || *address < 4096 || elements_of(&view) == 0
        || view.ndim > 64 || (view.ndim > 0 && view.strides == NULL))
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

/* Triton's class of an integer, as triton_key._integer has it. */
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

static int pack_argument(Call *call, const Signature *signature, Py_ssize_t i, int64_t here)
{
    const Formal *formal = &signature->formals[i];
    PyObject *value = call->values[i];
    PyTypeObject *type = Py_TYPE(value);
    int is_tensor = type == torch.tensor || type == torch.parameter;
    call->known[i] = (char)(formal->kind != CONSTANT && (is_tensor || type == &PyLong_Type));
    if (!call->known[i])
        return pack_plain(call, signature, formal, value);
    return is_tensor ? pack_pointer(call, formal, value, here, &call->bits[i])
                     : pack_number(call, formal, value, &call->bits[i]);
}

static int pack_arguments_of(Call *call, const Signature *signature, int64_t here)
{
    for (Py_ssize_t i = 0; i < formal_count(signature); i++)
        if (signature->formals[i].kind != FILLED && !pack_argument(call, signature, i, here))
            return 0;
    return 1;
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
    uint64_t here;
    Pack *pack = call->pack;
    pack->word_count = pack->object_count = pack->tensor_count = pack->overlap = 0;
    if (torch.exchange != NULL && bind_call(signature, call) && take_word(ask(&signature->here), &here)
        && push(pack, here) && pack_arguments_of(call, signature, (int64_t)here)
        && (call->names == NULL || pack_keywords(call, signature)) && pack_outer(call, signature))
        return 1;
    PyErr_Clear();
    drop_objects(pack);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- a kernel's road */

/*
 * An attribute that must be empty for a hit in C. It is read where `object.name` would read it: in the instance's dict,
 * else on the class, whose answer stands until the class changes (which its version tells).
 */
typedef struct {
    PyObject *object, *name, *names;    /* the last: the instance's dict, NULL where it has none */
    PyObject *on_class;                 /* what the class has under the name, or NULL */
    unsigned version;                   /* the class's when it was asked; 0: not yet */
    PyObject *chain, *chained;          /* a chain of hooks that was found there, and its dict */
} Watch;

enum { MOST_WATCHES = 16 };

typedef struct {
    Road road;
    Signature *signature;               /* NULL until the key is known: then nothing is judged */
    int watch_count;
    Watch watches[MOST_WATCHES];
    PyObject *kernel, *globals_at;      /* whose attribute of this name says which globals it was compiled with */
    PyObject *refused;                  /* refused(name, grid, values, error, text): raises for a failed launch */
    PyTypeObject *run_type, *at_grid;
    PyTypeObject *constant;             /* of globals: `tl.constexpr` */
    Py_ssize_t plan_at;                 /* where such a run keeps its plan */
} KernelRoad;

/* Ask the class again; 0 where it has a descriptor under the name, which decides about the attribute itself. */
static int look_at_class(Watch *watch)
{
    PyTypeObject *type = Py_TYPE(watch->object);
    Py_XSETREF(watch->on_class, Py_XNewRef(_PyType_Lookup(type, watch->name)));
    watch->version = watch->on_class != NULL && Py_TYPE(watch->on_class)->tp_descr_get != NULL ? 0 : type->tp_version_tag;
    return watch->version != 0;
}

/* A new reference; NULL with an error set, or where there is none. */
static PyObject *watched(Watch *watch)
{
    if (watch->names == NULL || (watch->version != Py_TYPE(watch->object)->tp_version_tag && !look_at_class(watch)))
        return PyObject_GetAttr(watch->object, watch->name);
    PyObject *value = PyDict_GetItemWithError(watch->names, watch->name);
    return Py_XNewRef(value != NULL ? value : watch->on_class);
}

/* A chain of hooks is an object even when it has none. */
static int is_empty_chain(Watch *watch, PyObject *chain)
{
    if (watch->chain != chain) {
        Py_XSETREF(watch->chained, PyObject_GenericGetDict(chain, NULL));
        Py_XSETREF(watch->chain, Py_NewRef(chain));
    }
    PyObject *calls = watch->chained == NULL ? NULL : PyDict_GetItemWithError(watch->chained, torch.calls);
    return calls != NULL && PyList_CheckExact(calls) && PyList_GET_SIZE(calls) == 0;
}

/* None, False, 0, an empty text or list, or an empty chain of hooks. */
static int is_empty(Watch *watch, PyObject *value)
{
    if (value == Py_None || value == Py_False)
        return 1;
    if (PyList_CheckExact(value))
        return PyList_GET_SIZE(value) == 0;
    if (PyUnicode_CheckExact(value))
        return PyUnicode_GET_LENGTH(value) == 0;
    if (PyLong_CheckExact(value))
        return PyObject_Not(value) == 1;
    return is_empty_chain(watch, value);
}

static int shows_nothing(Watch *watch)
{
    PyObject *value = watched(watch);
    int empty = value != NULL && is_empty(watch, value);
    Py_XDECREF(value);
    return empty;
}

/* Whether two constants of Triton's hold one value; each is a Python object with a `value`. */
static int same_constant(PyObject *a, PyObject *b)
{
    PyObject *of_a = PyObject_GetAttr(a, torch.value), *of_b = PyObject_GetAttr(b, torch.value);
    int same = of_a != NULL && of_a == of_b;
    Py_XDECREF(of_a);
    Py_XDECREF(of_b);
    return same;
}

/* Triton keeps a copy of each global. What may be equal all the same is Python's to judge. */
static int global_stands(const KernelRoad *road, PyObject *key, PyObject *known)
{
    if (!PyTuple_Check(key) || !PyTuple_Check(known) || PyTuple_GET_SIZE(key) < 1 || PyTuple_GET_SIZE(known) != 2
        || !PyDict_CheckExact(PyTuple_GET_ITEM(known, 1)))
        return 0;
    PyObject *then = PyTuple_GET_ITEM(known, 0);
    PyObject *now = PyDict_GetItemWithError(PyTuple_GET_ITEM(known, 1), PyTuple_GET_ITEM(key, 0));
    return now != NULL && Py_TYPE(now) == road->constant && Py_TYPE(then) == road->constant && same_constant(now, then);
}

/* Each global is what it was: {(name, ...): (value, where it stands)}. */
static int globals_stand(const KernelRoad *road, PyObject *globals)
{
    Py_ssize_t place = 0;
    PyObject *key, *known;
    if (!PyDict_CheckExact(globals))
        return 0;
    while (PyDict_Next(globals, &place, &key, &known))
        if (!global_stands(road, key, known))
            return 0;
    return 1;
}

/* Whether a launch needs nothing but being launched now; what it may need is triton_launch.why_not_now's to say. */
static int is_calm(KernelRoad *road)
{
    int calm = 1;
    for (int i = 0; calm && i < road->watch_count; i++)
        calm = shows_nothing(&road->watches[i]);
    if (calm) {
        PyObject *globals = PyObject_GetAttr(road->kernel, road->globals_at);
        calm = globals != NULL && globals_stand(road, globals);
        Py_XDECREF(globals);
    }
    if (!calm)
        PyErr_Clear();
    return calm;
}

/* The call as a tuple and a dict, for the table, which links by them. */
static int pack_for_kernel(const Road *self, Pack *pack, PyObject *args, PyObject *kwargs)
{
    const Signature *signature = ((const KernelRoad *)self)->signature;
    Py_ssize_t by_position = PyTuple_GET_SIZE(args), by_name = PyDict_GET_SIZE(kwargs), place = 0;
    PyObject *arguments[2 * MOST_FORMALS], *name, *value, *names = NULL;
    if (signature == NULL || by_position + by_name > 2 * MOST_FORMALS || (by_name && !(names = PyTuple_New(by_name))))
        return 0;
    for (Py_ssize_t i = 0; i < by_position; i++)
        arguments[i] = PyTuple_GET_ITEM(args, i);
    for (Py_ssize_t i = 0; PyDict_Next(kwargs, &place, &name, &value); i++) {
        PyTuple_SET_ITEM(names, i, Py_NewRef(name));
        arguments[by_position + i] = value;
    }
    Call call;
    call.arguments = arguments;
    call.by_position = by_position;
    call.names = names;
    call.pack = pack;
    int judged = pack_kernel_call(&call, signature);
    Py_XDECREF(names);
    return judged;
}

/* ------------------------------------------------------------------------------------------------------- the launch */

/* The plan of the slot's newest entry that can run, borrowed from its run, which is held; NULL where Python is to say. */
static const Plan *plan_in(const KernelRoad *road, PyObject *slot, PyObject **held)
{
    PyObject *entries = field(slot, road->road.entries_at);
    if (entries == NULL || !PyTuple_CheckExact(entries))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        PyObject *entry = PyTuple_GET_ITEM(entries, i);
        if (Py_TYPE(entry) != road->road.entry_type)
            return NULL;
        PyObject *run = field(entry, road->road.run_at);
        if (run == NULL || run == Py_None)
            continue;                   /* its build was let go */
        if (field(entry, road->road.check_at) != Py_None || Py_TYPE(run) != road->run_type)
            return NULL;
        PyObject *plan = field(run, road->plan_at);
        if (plan == NULL || Py_TYPE(plan) != &PlanType)
            return NULL;
        *held = Py_NewRef(run);
        return (Plan *)plan;
    }
    return NULL;
}

/* Sizes given as exact integers that fit; anything else is Python's to refuse, or to take. */
static int sizes_of(PyObject *grid, unsigned sizes[3])
{
    PyObject *const *items = PySequence_Fast_ITEMS(grid);
    Py_ssize_t count = PySequence_Fast_GET_SIZE(grid);
    if (count < 1 || count > 3)
        return 0;
    for (Py_ssize_t i = 0; i < 3; i++) {
        long size = i < count && PyLong_CheckExact(items[i]) ? PyLong_AsLong(items[i]) : i < count ? -1 : 1;
        if (size < 0 || size > INT32_MAX)
            return 0;
        sizes[i] = (unsigned)size;
    }
    return 1;
}

/* The arguments by name, with what configs and heuristics fill in, as a grid is shown them. */
static PyObject *meta_of(const Signature *signature, const Plan *plan, const Call *call, PyObject *absent)
{
    PyObject *meta = PyDict_New();
    for (Py_ssize_t i = 0; meta != NULL && i < formal_count(signature); i++) {
        PyObject *value = call->values[i] == NULL ? absent : call->values[i];
        if (PyDict_SetItem(meta, signature->formals[i].name, value) < 0)
            Py_CLEAR(meta);
    }
    if (meta != NULL && plan->filled != NULL && PyDict_Update(meta, plan->filled) < 0)
        Py_CLEAR(meta);
    return meta;
}

/* What a grid's function answers. NULL with an error set where it raises, as it would in Python. */
static PyObject *grid_by(PyObject *function, const Signature *signature, const Plan *plan, const Call *call)
{
    PyObject *meta = meta_of(signature, plan, call, Py_None);
    PyObject *grid = meta == NULL ? NULL : PyObject_CallOneArg(function, meta);
    Py_XDECREF(meta);
    return grid;
}

/* 1 with the sizes; 0 where Python is to say; -1 where a grid's function raised. */
static int size_grid(PyObject *grid, const Signature *signature, const Plan *plan, const Call *call, unsigned sizes[3])
{
    if (grid == Py_None) {
        memcpy(sizes, plan->grid, sizeof plan->grid);
        return sizes[0] != NO_GRID;
    }
    if (PyTuple_CheckExact(grid) || PyList_CheckExact(grid))
        return sizes_of(grid, sizes);
    if (!PyCallable_Check(grid))
        return 0;
    PyObject *answer = grid_by(grid, signature, plan, call);
    if (answer == NULL)
        return -1;
    int sized = (PyTuple_CheckExact(answer) || PyList_CheckExact(answer)) && sizes_of(answer, sizes);
    Py_DECREF(answer);
    return sized;
}

/* The value that a config or a heuristic gives. */
static PyObject *filled_value(const Plan *plan, const Formal *formal)
{
    return plan->filled == NULL ? NULL : PyDict_GetItemWithError(plan->filled, formal->name);
}

static int fill_from(const Plan *plan, const Signature *signature, const Call *call, char *buffer, void **places)
{
    for (Py_ssize_t i = 0; i < plan->count; i++) {
        const Parameter *parameter = &plan->parameters[i];
        Py_ssize_t source = parameter->source;
        uint64_t bits = 0;
        if (parameter->kind != ZEROS) {
            const Formal *formal = &signature->formals[source];
            PyObject *value = formal->kind == FILLED ? filled_value(plan, formal) : call->values[source];
            if (formal->kind != FILLED && call->known[source] && parameter->kind != REAL)
                bits = call->bits[source];
            else if (value == NULL || !bits_of(value, parameter, &bits))
                return 0;
        }
        places[i] = buffer + parameter->offset;
        memcpy(places[i], &bits, parameter->size);
    }
    return 1;
}

/* As `Launch.captured` has it: a launch inside a capture is noted, by Python. */
static int may_be_captured(void *stream)
{
    int status = 0;
    return stream != NULL && driver.is_capturing != NULL && (driver.is_capturing(stream, &status) != 0 || status != 0);
}

static PyObject *refuse_launch(const KernelRoad *road, const Signature *signature, const Plan *plan,
    const unsigned sizes[3], const Call *call, int error)
{
    PyObject *values = PyTuple_New(formal_count(signature));
    for (Py_ssize_t i = 0; values != NULL && i < PyTuple_GET_SIZE(values); i++)
        PyTuple_SET_ITEM(values, i, Py_NewRef(call->values[i] == NULL ? Py_None : call->values[i]));
    if (values == NULL)
        return NULL;
    return PyObject_CallFunction(road->refused, "O(III)Nis", plan->name, sizes[0], sizes[1], sizes[2], values, error,
        driver_says(error));
}

/* What the launch returns; NULL with an error set, or without one where Python is to say. */
static PyObject *launch_call(const KernelRoad *road, const Signature *signature, const Plan *plan, PyObject *slot,
    PyObject *grid, const Call *call)
{
    uint64_t buffer[MOST_BYTES / sizeof(uint64_t)];
    void *places[MOST_PARAMETERS], *stream = NULL;
    unsigned sizes[3];
    if (plan->values > formal_count(signature) || size_grid(grid, signature, plan, call, sizes) != 1)
        return NULL;
    if (!fill_from(plan, signature, call, (char *)buffer, places) || !stream_of(plan, &stream)) {
        PyErr_Clear();                  /* what does not fit is refused by Triton, in its own words */
        return NULL;
    }
    if (may_be_captured(stream) || !number_hit(&road->road, slot))
        return NULL;
    int error = sizes[0] != 0 && sizes[1] != 0 && sizes[2] != 0 ? launch_at(plan, sizes, stream, places) : 0;
    if (error == NO_CONTEXT)
        return NULL;                    /* this thread has not used CUDA yet, and nothing was launched */
    if (error != 0)
        return refuse_launch(road, signature, plan, sizes, call, error);
    return Py_NewRef(plan->answer);
}

static PyObject *hit(const KernelRoad *road, const Signature *signature, const Link *link, PyObject *grid, const Call *call)
{
    PyObject *run = NULL, *slot = link == NULL ? NULL : link->slot;
    if (slot == NULL)
        return NULL;
    Py_INCREF(slot);
    const Plan *plan = plan_in(road, slot, &run);
    PyObject *answer = plan == NULL ? NULL : launch_call(road, signature, plan, slot, grid, call);
    Py_XDECREF(run);
    Py_DECREF(slot);
    return answer;
}

/* -------------------------------------------------------------------------------------------- what the user calls */

/* A kernel as its user holds it; a Python class is made over it, with the methods that are asked when C cannot answer. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    KernelRoad *road;                   /* NULL: every call takes the Python road */
} Front;

/* By Python: front.<method>(link, grid, *arguments). */
static PyObject *by_method(PyObject *front, PyObject *method, Link *link, PyObject *grid, const Call *call)
{
    Py_ssize_t count = call->by_position + name_count(call);
    PyObject **stack = PyMem_Malloc((size_t)(count + 3) * sizeof *stack);
    if (stack == NULL)
        return PyErr_NoMemory();
    stack[0] = front;
    stack[1] = link != NULL && link->slot == NULL ? (PyObject *)link : Py_None;
    stack[2] = grid;
    memcpy(stack + 3, call->arguments, (size_t)count * sizeof *stack);
    PyObject *answer = PyObject_VectorcallMethod(method, stack, (size_t)call->by_position + 3, call->names);
    PyMem_Free(stack);
    return answer;
}

static PyObject *call_kernel(PyObject *self, PyObject *method, PyObject *grid, Call *call)
{
    Pack pack;
    call->pack = &pack;
    KernelRoad *road = ((Front *)self)->road;
    PyObject *answer = NULL;
    Link *link = NULL;
    if (road != NULL && road->signature != NULL && !road->road.off && is_calm(road)) {
        Py_INCREF(road);
        Signature *signature = (Signature *)Py_NewRef(road->signature);
        if (pack_kernel_call(call, signature)) {
            link = link_of(&road->road, call->pack);
            answer = hit(road, signature, link, grid, call);
        }
        Py_DECREF(signature);
        Py_DECREF(road);
    }
    if (answer == NULL && !PyErr_Occurred())
        answer = by_method(self, method, link, grid, call);
    Py_XDECREF(link);
    return answer;
}

static PyObject *front_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Call call;
    call.arguments = arguments;
    call.by_position = PyVectorcall_NARGS(flags);
    call.names = names;
    return call_kernel(self, torch.called, Py_None, &call);
}

/* `kernel[grid]` */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *front, *grid;
} AtGrid;

static PyObject *at_grid_vectorcall(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Call call;
    call.arguments = arguments;
    call.by_position = PyVectorcall_NARGS(flags);
    call.names = names;
    return call_kernel(((AtGrid *)self)->front, torch.launched, ((AtGrid *)self)->grid, &call);
}

static PyTypeObject AtGridType;

static PyObject *front_subscript(PyObject *self, PyObject *grid)
{
    KernelRoad *road = ((Front *)self)->road;
    PyTypeObject *type = road == NULL || road->at_grid == NULL ? &AtGridType : road->at_grid;
    AtGrid *made = (AtGrid *)type->tp_alloc(type, 0);
    if (made == NULL)
        return NULL;
    made->vectorcall = at_grid_vectorcall;
    made->front = Py_NewRef(self);
    made->grid = Py_NewRef(grid);
    return (PyObject *)made;
}

static int at_grid_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((AtGrid *)self)->front);
    Py_VISIT(((AtGrid *)self)->grid);
    return 0;
}

static int at_grid_clear(PyObject *self)
{
    Py_CLEAR(((AtGrid *)self)->front);
    Py_CLEAR(((AtGrid *)self)->grid);
    return 0;
}

static void at_grid_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    at_grid_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef at_grid_members[] = {
    {"front", T_OBJECT_EX, offsetof(AtGrid, front), READONLY, "the kernel"},
    {"grid", T_OBJECT_EX, offsetof(AtGrid, grid), READONLY, "what stands between the brackets"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(AtGrid, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject AtGridType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch._hotpath.AtGrid",
    .tp_doc = "kernel[grid]: called with the kernel's arguments.",
    .tp_basicsize = sizeof(AtGrid),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = at_grid_dealloc,
    .tp_traverse = at_grid_traverse,
    .tp_clear = at_grid_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(AtGrid, vectorcall),
    .tp_members = at_grid_members,
};

static PyObject *front_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Front *front = (Front *)type->tp_alloc(type, 0);
    if (front != NULL)
        front->vectorcall = front_vectorcall;
    return (PyObject *)front;
}

static int front_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT((PyObject *)((Front *)self)->road);
    return 0;
}

static int front_clear(PyObject *self)
{
    Py_CLEAR(((Front *)self)->road);
    return 0;
}

static void front_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    front_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMappingMethods front_as_mapping = {.mp_subscript = front_subscript};

PyDoc_STRVAR(take_road_doc, "take_road(road, /)\n--\n\nLet this road answer hits.");

static PyTypeObject KernelRoadType;

static PyObject *front_take_road(PyObject *self, PyObject *road)
{
    if (Py_TYPE(road) != &KernelRoadType)
        return PyErr_Format(PyExc_TypeError, "take_road takes a kernel's road");
    Py_XSETREF(((Front *)self)->road, (KernelRoad *)Py_NewRef(road));
    Py_RETURN_NONE;
}

static PyMethodDef front_methods[] = {
    {"take_road", front_take_road, METH_O, take_road_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef front_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Front, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject FrontType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch._hotpath.Front",
    .tp_doc = "A kernel whose hits are answered in C. A class over it has `_called(link, grid, *args, **kwargs)` for\n"
              "calls with the decorator's grid and `_launched`, the same, for those with their own.",
    .tp_basicsize = sizeof(Front),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = front_new,
    .tp_dealloc = front_dealloc,
    .tp_traverse = front_traverse,
    .tp_clear = front_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Front, vectorcall),
    .tp_as_mapping = &front_as_mapping,
    .tp_methods = front_methods,
    .tp_members = front_members,
};

/* -------------------------------------------------------------------------------------- a kernel's road, as a type */

static int take_watch(KernelRoad *road, PyObject *pair)
{
    Watch *watch = &road->watches[road->watch_count];
    if (!PyArg_ParseTuple(pair, "OU", &watch->object, &watch->name)) {
        watch->object = watch->name = NULL;
        return 0;
    }
    road->watch_count++;
    Py_INCREF(watch->object);
    Py_INCREF(watch->name);
    PyUnicode_InternInPlace(&watch->name);
    watch->names = PyObject_GenericGetDict(watch->object, NULL);
    PyErr_Clear();                      /* without one the object is asked */
    return 1;
}

static int take_watches(KernelRoad *road, PyObject *silent)
{
    if (PyTuple_GET_SIZE(silent) > MOST_WATCHES) {
        PyErr_Format(PyExc_ValueError, "more than %d attributes are to be watched", MOST_WATCHES);
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(silent); i++)
        if (!take_watch(road, PyTuple_GET_ITEM(silent, i)))
            return 0;
    return 1;
}

static PyObject *kernel_road_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"silent", "kernel", "globals_at", "run_type", "constant", "at_grid", "refused", NULL};
    PyObject *silent, *kernel, *globals_at, *run_type, *constant, *at_grid, *refused;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OUO!O!O!O", names, &PyTuple_Type, &silent, &kernel, &globals_at,
            &PyType_Type, &run_type, &PyType_Type, &constant, &PyType_Type, &at_grid, &refused))
        return NULL;
    Py_ssize_t plan_at = field_at((PyTypeObject *)run_type, "plan");
    if (plan_at < 0)
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)at_grid, &AtGridType))
        return PyErr_Format(PyExc_TypeError, "at_grid is no AtGrid");
    KernelRoad *road = (KernelRoad *)empty_road(type);
    if (road == NULL)
        return NULL;
    road->road.packs = pack_for_kernel;
    road->kernel = Py_NewRef(kernel);
    road->globals_at = Py_NewRef(globals_at);
    road->run_type = (PyTypeObject *)Py_NewRef(run_type);
    road->constant = (PyTypeObject *)Py_NewRef(constant);
    road->at_grid = (PyTypeObject *)Py_NewRef(at_grid);
    road->refused = Py_NewRef(refused);
    road->plan_at = plan_at;
    if (!take_watches(road, silent))
        Py_CLEAR(road);
    return (PyObject *)road;
}

static int kernel_road_traverse(PyObject *self, visitproc visit, void *arg)
{
    KernelRoad *road = (KernelRoad *)self;
    Py_VISIT((PyObject *)road->signature);
    for (int i = 0; i < road->watch_count; i++) {
        Watch *watch = &road->watches[i];
        Py_VISIT(watch->object);
        Py_VISIT(watch->names);
        Py_VISIT(watch->on_class);
        Py_VISIT(watch->chain);
        Py_VISIT(watch->chained);
    }
    Py_VISIT(road->kernel);
    Py_VISIT((PyObject *)road->run_type);
    Py_VISIT((PyObject *)road->constant);
    Py_VISIT((PyObject *)road->at_grid);
    Py_VISIT(road->refused);
    return road_traverse(self, visit, arg);
}

static int kernel_road_clear(PyObject *self)
{
    KernelRoad *road = (KernelRoad *)self;
    Py_CLEAR(road->signature);
    for (int i = 0; i < road->watch_count; i++) {
        Watch *watch = &road->watches[i];
        Py_CLEAR(watch->object);
        Py_CLEAR(watch->name);
        Py_CLEAR(watch->names);
        Py_CLEAR(watch->on_class);
        Py_CLEAR(watch->chain);
        Py_CLEAR(watch->chained);
    }
    road->watch_count = 0;
    Py_CLEAR(road->kernel);
    Py_CLEAR(road->globals_at);
    Py_CLEAR(road->run_type);
    Py_CLEAR(road->constant);
    Py_CLEAR(road->at_grid);
    Py_CLEAR(road->refused);
    return road_clear(self);
}

static void kernel_road_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    kernel_road_clear(self);
    PyMem_Free(((Road *)self)->places);
    Py_TYPE(self)->tp_free(self);
}

PyDoc_STRVAR(sign_doc, "sign(signature, /)\n--\n\n"
    "Pack calls by this signature from now on, or judge none (None); calls that were linked by another are forgotten.");

static PyObject *kernel_road_sign(PyObject *self, PyObject *signature)
{
    if (signature != Py_None && Py_TYPE(signature) != &SignatureType)
        return PyErr_Format(PyExc_TypeError, "sign takes a Signature or None");
    KernelRoad *road = (KernelRoad *)self;
    Py_XSETREF(road->signature, signature == Py_None ? NULL : (Signature *)Py_NewRef(signature));
    unlink_all(&road->road);
    Py_RETURN_NONE;
}

static PyMethodDef kernel_road_methods[] = {
    {"sign", kernel_road_sign, METH_O, sign_doc},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject KernelRoadType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shapedispatch._hotpath.KernelRoad",
    .tp_doc = "KernelRoad(silent, kernel, globals_at, run_type, constant, at_grid, refused)\n--\n\n"
              "The hit path of one kernel. Hits are answered while each (object, attribute) of `silent` is empty and the\n"
              "kernel's globals are what they were; runs of `run_type` have a `plan`.",
    .tp_basicsize = sizeof(KernelRoad),
    .tp_base = &RoadType,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = kernel_road_new,
    .tp_dealloc = kernel_road_dealloc,
    .tp_traverse = kernel_road_traverse,
    .tp_clear = kernel_road_clear,
    .tp_methods = kernel_road_methods,
};
