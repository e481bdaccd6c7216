/* The hit path of a Triton kernel: what must be silent, the plan of what was chosen, its launch. */

/* -------------------------------------------------------------------------------------------------- a kernel's road */

enum { MOST_WATCHES = 16 };

typedef struct {
    Road road;
    Signature *signature;               /* NULL until the key is known: then nothing is judged */
    int watch_count;
    uint64_t calm_since;                /* the count of changes when all was calm, where all of it tells */
    Watch watches[MOST_WATCHES];
    Watch globals_at;                   /* the kernel's attribute that says which globals it was compiled with */
    PyObject *globals;                  /* what that was when all was calm */
    PyObject *refused;                  /* refused(name, grid, values, error, text): raises for a failed launch */
    PyTypeObject *run_type, *at_grid;
    PyTypeObject *constant;             /* of globals: `tl.constexpr` */
    Py_ssize_t plan_at;                 /* where such a run keeps its plan */
} KernelRoad;

/* One object under both names; a NaN is no value, and what other types say of themselves is for Python to ask. */
static int is_same_value(PyObject *a, PyObject *b)
{
    if (a == NULL || a != b)
        return 0;
    return PyLong_CheckExact(a) || PyUnicode_CheckExact(a) || PyBool_Check(a) || a == Py_None
        || (PyFloat_CheckExact(a) && PyFloat_AS_DOUBLE(a) == PyFloat_AS_DOUBLE(a));
}

/* Whether two constants of Triton's hold one value; each is a Python object with a `value`. */
static int same_constant(PyObject *a, PyObject *b)
{
    Py_INCREF(a);                       /* to read a value may run code that lets them go */
    Py_INCREF(b);
    PyObject *of_a = PyObject_GetAttr(a, torch.value), *of_b = PyObject_GetAttr(b, torch.value);
    int same = is_same_value(of_a, of_b);
    Py_XDECREF(of_a);
    Py_XDECREF(of_b);
    Py_DECREF(a);
    Py_DECREF(b);
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
    Py_ssize_t place = 0, count;
    PyObject *key, *known;
    if (globals == NULL || !PyDict_CheckExact(globals))
        return 0;
    int stand = 1;
    Py_INCREF(globals);
    count = PyDict_GET_SIZE(globals);
    while (stand && PyDict_Next(globals, &place, &key, &known)) {
        Py_INCREF(key);
        Py_INCREF(known);
        stand = global_stands(road, key, known) && PyDict_GET_SIZE(globals) == count;
        Py_DECREF(key);
        Py_DECREF(known);
    }
    Py_DECREF(globals);
    return stand;
}

enum { NEVER = 0 };     /* no count of changes */

/* As it was when all was calm: no dict has told of a change, and what tells of none is looked at. */
static int stays_calm(const KernelRoad *road)
{
    if (road->calm_since != changes.count)
        return 0;
    for (int i = 0; i < road->watch_count; i++)
        if (!still_shows_nothing(&road->watches[i]))
            return 0;
    return class_stands(&road->globals_at) && globals_stand(road, road->globals);
}

static int look_around(KernelRoad *road)
{
    uint64_t before = changes.count;    /* looking may run code that changes what was looked at */
    int told = is_told(&road->globals_at);
    road->calm_since = NEVER;
    for (int i = 0; i < road->watch_count; i++) {
        int another = i == 0 || road->watches[i].object != road->watches[i - 1].object;
        if ((another && !has_its_dict(&road->watches[i])) || !shows_nothing(&road->watches[i]))
            return 0;
        told = told && is_told(&road->watches[i]);
    }
    PyObject *globals = watched(&road->globals_at);
    Py_XSETREF(road->globals, globals);
    if (globals == NULL || !globals_stand(road, globals))
        return 0;
    if (told)
        road->calm_since = before;
    return 1;
}

/* Whether a launch needs nothing but being launched now; what it may need is launch.why_not_now's to say. */
static int is_calm(KernelRoad *road)
{
    int calm = stays_calm(road) || look_around(road);
    if (!calm)
        PyErr_Clear();
    return calm;
}

/* The call as a tuple and a dict, for the table, which links by them. */
static int pack_for_kernel(const Road *self, Pack *pack, PyObject *args, PyObject *kwargs)
{
    const Signature *signature = ((const KernelRoad *)self)->signature;
    PyObject *arguments[2 * MOST_FORMALS], *name, *value, *names = NULL;
    if (signature == NULL || !PyTuple_CheckExact(args) || !PyDict_CheckExact(kwargs))
        return 0;
    Py_ssize_t by_position = PyTuple_GET_SIZE(args), by_name = PyDict_GET_SIZE(kwargs), place = 0;
    if (by_position + by_name > 2 * MOST_FORMALS)
        return 0;
    if (by_name > 0 && (names = PyTuple_New(by_name)) == NULL) {
        PyErr_Clear();
        return 0;
    }
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

/* The plan of the slot's newest entry that can run, borrowed from its run, which is held; NULL for Python to say. */
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

static int size_of(PyObject *given, unsigned *size)
{
    PyObject *number = PyNumber_Index(given);       /* numpy's integers, say */
    long long found = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    *size = (unsigned)found;
    return found >= 0 && found <= INT32_MAX;
}

/* The first three of what a grid gives, in a sequence of any type; what cannot be read is Python's to refuse. */
static int sizes_of(PyObject *grid, unsigned sizes[3])
{
    PyObject *items = PyTuple_Check(grid) || PyList_Check(grid) ? PySequence_Tuple(grid) : NULL;
    Py_ssize_t count = items == NULL ? 0 : PyTuple_GET_SIZE(items);
    int read = count > 0;
    for (Py_ssize_t i = 0; read && i < 3; i++)
        if (i < count)
            read = size_of(PyTuple_GET_ITEM(items, i), &sizes[i]);
        else
            sizes[i] = 1;
    Py_XDECREF(items);
    if (!read)
        PyErr_Clear();
    return read;
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
    if (!PyCallable_Check(grid))
        return sizes_of(grid, sizes);
    PyObject *answer = grid_by(grid, signature, plan, call);
    if (answer == NULL)
        return -1;
    int sized = sizes_of(answer, sizes);
    Py_DECREF(answer);
    return sized;
}

/* The value that a config or a heuristic gives. */
static PyObject *filled_value(const Plan *plan, const Formal *formal)
{
    return plan->filled == NULL ? NULL : PyDict_GetItemWithError(plan->filled, formal->name);
}

/* Whether the parameter can hold an integer that was packed: by annotation it may be narrower, or unsigned. */
static int holds(const Parameter *parameter, uint64_t bits)
{
    if (parameter->kind == UNSIGNED_INT)
        return (int64_t)bits >= 0 && fits(bits, parameter->size, 0);
    return parameter->kind != SIGNED_INT || fits(bits, parameter->size, 1);
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
            if (!holds(parameter, bits))
                return 0;
        }
        places[i] = buffer + parameter->offset;
        if (parameter->size == sizeof bits)
            memcpy(places[i], &bits, sizeof bits);      /* a store; of a size that is only known now it is a call */
        else
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

/* A launch as it will be but for its grid. */
typedef struct {
    uint64_t buffer[MOST_BYTES / sizeof(uint64_t)];
    void *places[MOST_PARAMETERS], *stream;
} Order;

/* Whether C may launch it: on this device, with these arguments, outside of a capture. */
static int may_launch(const Signature *signature, const Plan *plan, const Call *call, Order *order)
{
    order->stream = NULL;
    if (plan->values > formal_count(signature) || plan->device != call->here || !is_current(plan))
        return 0;                       /* another device is, or this thread has not used CUDA yet */
    if (fill_from(plan, signature, call, (char *)order->buffer, order->places) && stream_of(plan, &order->stream))
        return !may_be_captured(order->stream);
    PyErr_Clear();                      /* what does not fit is refused by Triton, in its own words */
    return 0;
}

/* A grid's function may have had the entry let go. */
static int is_plan_in(const KernelRoad *road, PyObject *slot, const Plan *plan)
{
    PyObject *run = NULL;
    int found = plan_in(road, slot, &run) == plan;
    Py_XDECREF(run);
    return found;
}

/* It may also have set a hook: then Python launches, over what the function has come to. */
static int is_calm_still(KernelRoad *road, const unsigned sizes[3], Call *call)
{
    if (is_calm(road))
        return 1;
    call->sized = Py_BuildValue("(III)", sizes[0], sizes[1], sizes[2]);
    return 0;
}

/* What the launch returns; NULL with an error set, or without one where Python is to say. */
static PyObject *launch_call(KernelRoad *road, const Signature *signature, const Plan *plan, PyObject *slot,
    PyObject *grid, Call *call)
{
    Order order;
    unsigned sizes[3];
    /* All that may leave the launch to Python comes before the grid's function, which is called once a launch. */
    if (!may_launch(signature, plan, call, &order) || size_grid(grid, signature, plan, call, sizes) != 1)
        return NULL;
    if (PyCallable_Check(grid) && (!is_plan_in(road, slot, plan) || !is_calm_still(road, sizes, call)))
        return NULL;
    if (!number_hit(&road->road, slot))
        return NULL;
    int error = sizes[0] != 0 && sizes[1] != 0 && sizes[2] != 0
        ? launch_at(plan, sizes, order.stream, order.places) : 0;
    if (error != 0)
        return refuse_launch(road, signature, plan, sizes, call, error);
    return Py_NewRef(plan->answer);
}

static PyObject *hit(KernelRoad *road, const Signature *signature, const Link *link, PyObject *grid, Call *call)
{
    PyObject *run = NULL, *slot = link == NULL ? NULL : link->slot;
    if (slot == NULL)
        return NULL;
    Py_INCREF(slot);
    const Plan *plan = plan_in(road, slot, &run);
    if (plan == NULL) {
        Py_DECREF(slot);
        return NULL;
    }
    Py_INCREF(plan);                    /* a grid's function may have the entry let go */
    PyObject *answer = launch_call(road, signature, plan, slot, grid, call);
    Py_DECREF(plan);
    Py_DECREF(run);
    Py_DECREF(slot);
    return answer;
}
