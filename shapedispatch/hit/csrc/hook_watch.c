/* What must be off while a kernel's hits are answered in C: hooks and modes, which are attributes of Python objects. */

/* ---------------------------------------------------------------------------------------------------- one attribute */

/* What is empty: whatever Python takes for false; None alone; None or a chain of hooks without one. */
enum { FALSE_VALUE = 'f', NONE_ALONE = 'n', EMPTY_CHAIN = 'c' };

/*
 * An attribute that must be empty for a hit in C. It is read where `object.name` would read it: in the instance's dict,
 * else on the class, whose answer stands until the class changes (which its version shows).
 */
typedef struct {
    PyObject *object, *name, *names;    /* the last: the instance's dict, NULL where it has none */
    PyObject *on_class;                 /* what the class has under the name, or NULL */
    PyObject *chain, *chained;          /* a chain of hooks that was found there, and its dict */
    PyObject *list;                     /* the list that was found there, or in the chain: no watcher sees its items */
    int kind;
    unsigned version;                   /* the class's when it was asked; 0: not yet, or no answer that stands */
    unsigned chain_version;             /* its class's, which has nothing to say about the list; 0: not asked */
    uint64_t watcher;                   /* of all dicts that it is read from, or NEVER */
} Watch;

static void take_watch(Watch *watch, PyObject *object, PyObject *name, int kind)
{
    watch->object = Py_NewRef(object);
    watch->name = Py_NewRef(name);
    watch->kind = kind;
    PyUnicode_InternInPlace(&watch->name);
    watch->names = PyObject_GenericGetDict(object, NULL);
    PyErr_Clear();                      /* without one the object is asked */
    watch->watcher = watch_dict(watch->names);
}

/* Whether the dict that was taken is still the object's. No watcher sees a dict replaced: this does, later. */
static int has_its_dict(const Watch *watch)
{
    PyObject *now = PyObject_GenericGetDict(watch->object, NULL);
    Py_XDECREF(now);
    if (now == NULL)
        PyErr_Clear();
    return now == watch->names;
}

/* Attributes are read by Python's own rule: where the class has another, the object is asked. */
static int reads_its_dict(PyTypeObject *type)
{
    return type->tp_getattro == PyObject_GenericGetAttr || type == &PyModule_Type;
}

static int class_unchanged(const Watch *watch)
{
    return has_version(Py_TYPE(watch->object), watch->version);
}

/* Ask the class again; 0 where it has a descriptor under the name, which decides about the attribute itself. */
static int read_class(Watch *watch)
{
    PyTypeObject *type = Py_TYPE(watch->object);
    Py_XSETREF(watch->on_class, Py_XNewRef(class_attribute(type, watch->name)));
    int decides = watch->on_class != NULL && Py_TYPE(watch->on_class)->tp_descr_get != NULL;
    watch->version = decides || !reads_its_dict(type) ? 0 : class_version(type, watch->name);
    return watch->version != 0;
}

/* A new reference; NULL with an error set, or where there is none. */
static PyObject *watched(Watch *watch)
{
    if (watch->names == NULL || (!class_unchanged(watch) && !read_class(watch)))
        return PyObject_GetAttr(watch->object, watch->name);
    PyObject *value = PyDict_GetItemWithError(watch->names, watch->name);
    return Py_XNewRef(value != NULL ? value : watch->on_class);
}

static int is_empty_list(Watch *watch, PyObject *list)
{
    if (watch->list != list)
        Py_XSETREF(watch->list, Py_NewRef(list));
    return PyList_GET_SIZE(list) == 0;
}

/* Whether a chain's list is what its dict says: its class says nothing about it, and has no rule of its own. */
static int read_chain(Watch *watch, PyObject *chain)
{
    PyTypeObject *type = Py_TYPE(chain);
    if (watch->chain != chain) {
        Py_XSETREF(watch->chained, PyObject_GenericGetDict(chain, NULL));
        Py_XSETREF(watch->chain, Py_NewRef(chain));
        watch->watcher = watch->watcher == watch_dict(watch->chained) ? watch->watcher : NEVER;
    }
    int plain = watch->chained != NULL && reads_its_dict(type) && class_attribute(type, torch.calls) == NULL;
    watch->chain_version = plain ? class_version(type, torch.calls) : 0;
    return plain;
}

/* A chain of hooks is an object even when it has none. */
static int is_empty_chain(Watch *watch, PyObject *chain)
{
    if (!read_chain(watch, chain))
        return 0;
    PyObject *calls = PyDict_GetItemWithError(watch->chained, torch.calls);
    return calls != NULL && PyList_CheckExact(calls) && is_empty_list(watch, calls);
}

/* Of types whose truth runs no code. */
static int is_false(Watch *watch, PyObject *value)
{
    if (PyList_CheckExact(value))
        return is_empty_list(watch, value);
    if (PyUnicode_CheckExact(value))
        return PyUnicode_GET_LENGTH(value) == 0;
    return value == Py_False || (PyLong_CheckExact(value) && PyObject_Not(value) == 1);
}

static int is_empty(Watch *watch, PyObject *value)
{
    Py_CLEAR(watch->list);
    if (value == Py_None)
        return 1;
    if (watch->kind == FALSE_VALUE)
        return is_false(watch, value);
    return watch->kind == EMPTY_CHAIN && is_empty_chain(watch, value);
}

static int shows_no_hooks(Watch *watch)
{
    PyObject *value = watched(watch);
    if (value == NULL || watch->chain != value)
        Py_CLEAR(watch->chain);         /* what is there is none, or another */
    int empty = value != NULL && is_empty(watch, value);
    Py_XDECREF(value);
    return empty;
}

static int is_watched(const Watch *watch)
{
    return changes.id >= 0 && watch->watcher == changes.watcher;
}

/* Whether it is as empty as when it showed nothing, if no dict has changed since. */
static int still_shows_no_hooks(const Watch *watch)
{
    return class_unchanged(watch) && (watch->list == NULL || PyList_GET_SIZE(watch->list) == 0)
        && (watch->chain == NULL || has_version(Py_TYPE(watch->chain), watch->chain_version));
}

/* --------------------------------------------------------------------------- the globals a kernel was compiled with */

/* One object under both names; a NaN is no value, and what other types say of themselves is for Python to ask. */
static int is_same_value(PyObject *a, PyObject *b)
{
    if (a == NULL || a != b)
        return 0;
    return PyLong_CheckExact(a) || PyUnicode_CheckExact(a) || PyBool_Check(a) || a == Py_None
        || (PyFloat_CheckExact(a) && PyFloat_AS_DOUBLE(a) == PyFloat_AS_DOUBLE(a));
}

/* Whether two constants of Triton's hold one value; each is a Python object with a `value`. The second is held. */
static int same_constant(PyObject *a, PyObject *b)
{
    Py_INCREF(a);                       /* to read a value may run code that lets it go */
    PyObject *of_a = PyObject_GetAttr(a, torch.value), *of_b = PyObject_GetAttr(b, torch.value);
    int same = is_same_value(of_a, of_b);
    Py_XDECREF(of_a);
    Py_XDECREF(of_b);
    Py_DECREF(a);
    return same;
}

/* Triton keeps a copy of each global. What may be equal all the same is Python's to judge. */
static int global_unchanged(PyObject *key, PyObject *known, PyTypeObject *constant)
{
    if (!PyTuple_Check(key) || !PyTuple_Check(known) || PyTuple_GET_SIZE(key) < 1 || PyTuple_GET_SIZE(known) != 2
        || !PyDict_CheckExact(PyTuple_GET_ITEM(known, 1)))
        return 0;
    PyObject *then = PyTuple_GET_ITEM(known, 0);
    PyObject *now = PyDict_GetItemWithError(PyTuple_GET_ITEM(known, 1), PyTuple_GET_ITEM(key, 0));
    return now != NULL && Py_IS_TYPE(now, constant) && Py_IS_TYPE(then, constant) && same_constant(now, then);
}

/* Each global is what it was: {(name, ...): (value, where it stands)}. */
static int globals_unchanged(PyObject *globals, PyObject *constant)
{
    PyObject *key, *known;
    if (globals == NULL || !PyDict_CheckExact(globals))
        return 0;
    Py_ssize_t place = 0, count = PyDict_GET_SIZE(globals);
    int unchanged = 1;
    Py_INCREF(globals);
    while (unchanged && PyDict_Next(globals, &place, &key, &known)) {
        Py_INCREF(key);
        Py_INCREF(known);
        unchanged = global_unchanged(key, known, (PyTypeObject *)constant) && PyDict_GET_SIZE(globals) == count;
        Py_DECREF(key);
        Py_DECREF(known);
    }
    Py_DECREF(globals);
    return unchanged;
}

/* ------------------------------------------------------------------------------------------------------ all of them */

enum { MOST_WATCHES = 16 };

typedef struct {
    int count;
    uint64_t checked;                   /* the count of changes when no hook was found, if all is watched */
    Watch watches[MOST_WATCHES];
    Watch globals_at;                   /* the kernel's attribute that says which globals it was compiled with */
    PyObject *globals;                  /* what that was then */
    PyObject *constant;                 /* the type of globals: `tl.constexpr` */
} Hooks;

/* 0 with an error set where what is to be watched is not given as (object, attribute, kind). */
static int take_hooks(Hooks *hooks, PyObject *hooks_to_check, PyObject *kernel, PyObject *globals_at,
    PyObject *constant)
{
    take_watch(&hooks->globals_at, kernel, globals_at, NONE_ALONE);
    hooks->constant = Py_NewRef(constant);
    if (PyTuple_GET_SIZE(hooks_to_check) > MOST_WATCHES)
        return PyErr_Format(PyExc_ValueError, "more than %d attributes are to be watched", MOST_WATCHES) != NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(hooks_to_check); i++) {
        PyObject *object, *name;
        int kind;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(hooks_to_check, i), "OUC", &object, &name, &kind))
            return 0;
        take_watch(&hooks->watches[hooks->count++], object, name, kind);
    }
    return 1;
}

static int visit_hooks(Hooks *hooks, visitproc visit, void *arg)
{
    int stop = visit_references(REFERENCES(&hooks->globals_at, object, list), visit, arg);
    for (int i = 0; stop == 0 && i < hooks->count; i++)
        stop = visit_references(REFERENCES(&hooks->watches[i], object, list), visit, arg);
    return stop != 0 ? stop : visit_references(REFERENCES(hooks, globals, constant), visit, arg);
}

/* Without what it watches nothing shows that there is no hook. */
static void clear_hooks(Hooks *hooks)
{
    hooks->checked = NEVER;
    clear_references(REFERENCES(&hooks->globals_at, object, list));
    for (; hooks->count > 0; hooks->count--)
        clear_references(REFERENCES(&hooks->watches[hooks->count - 1], object, list));
    clear_references(REFERENCES(hooks, globals, constant));
}

/* As when no hook was found: no dict has changed, and what no watcher sees is read. */
static int hooks_unchanged(const Hooks *hooks)
{
    if (hooks->checked != changes.count)
        return 0;
    for (int i = 0; i < hooks->count; i++)
        if (!still_shows_no_hooks(&hooks->watches[i]))
            return 0;
    return class_unchanged(&hooks->globals_at) && globals_unchanged(hooks->globals, hooks->constant);
}

static int check_hooks(Hooks *hooks)
{
    uint64_t before = changes.count;    /* to read may run code that changes what was read */
    int all_watched = is_watched(&hooks->globals_at);
    hooks->checked = NEVER;
    if (hooks->globals_at.object == NULL)
        return 0;                       /* it was cleared */
    for (int i = 0; i < hooks->count; i++) {
        int another = i == 0 || hooks->watches[i].object != hooks->watches[i - 1].object;
        if ((another && !has_its_dict(&hooks->watches[i])) || !shows_no_hooks(&hooks->watches[i]))
            return 0;
        all_watched = all_watched && is_watched(&hooks->watches[i]);
    }
    PyObject *globals = watched(&hooks->globals_at);
    Py_XSETREF(hooks->globals, globals);
    if (globals == NULL || !globals_unchanged(globals, hooks->constant))
        return 0;
    if (all_watched)
        hooks->checked = before;
    return 1;
}

/* Whether a launch needs nothing but being launched now; what it may need is launch.why_not_now's to say. */
static int no_hooks(Hooks *hooks)
{
    int found_none = hooks_unchanged(hooks) || check_hooks(hooks);
    if (!found_none)
        PyErr_Clear();
    return found_none;
}
