/* What must stay empty while hits are answered in C: attributes of Python objects. */

/* --------------------------------------------------------------------------------------- dicts that tell of changes */

/*
 * From Python 3.12 on a dict tells a watcher when it is about to change: what stood in one that has told nothing since
 * stands there now. Before, or where native.py finds a change that is not told, each is looked into at each hit.
 */
static struct {
    int id;                             /* of the watcher; negative where nothing is told */
    uint64_t count;                     /* of changes that were told, of any dict */
    uint64_t watcher_id;                  /* which of the watchers in turn; what told another tells this one nothing */
} changes = {.id = -1, .count = 1, .watcher_id = 1};

#if PY_VERSION_HEX >= 0x030C0000
static int note_change(PyDict_WatchEvent Py_UNUSED(event), PyObject *Py_UNUSED(dict), PyObject *Py_UNUSED(key),
    PyObject *Py_UNUSED(value))
{
    changes.count++;
    return 0;
}

static void use_dict_watcher(void)
{
    if (changes.id < 0)
        changes.id = PyDict_AddWatcher(note_change);
    if (changes.id < 0)
        PyErr_Clear();                  /* there are no more than eight */
}

static void drop_dict_watcher(void)
{
    if (changes.id >= 0 && PyDict_ClearWatcher(changes.id) < 0)
        PyErr_Clear();
    changes.id = -1;
    changes.count++;
    changes.watcher_id++;
}

/* Whom its changes are told from now on; 0 where nobody. */
static uint64_t watched_change(PyObject *dict)
{
    int watched_dict = changes.id >= 0 && dict != NULL && PyDict_CheckExact(dict) && PyDict_Watch(changes.id, dict) == 0;
    if (!watched_dict)
        PyErr_Clear();
    return watched_dict ? changes.watcher_id : 0;
}
#else
static void use_dict_watcher(void)
{
}

static void drop_dict_watcher(void)
{
}

static uint64_t watched_change(PyObject *Py_UNUSED(dict))
{
    return 0;
}
#endif

PyDoc_STRVAR(use_watchers_doc, "listen(on, /)\n--\n\n"
    "Have changes of dicts told, or looked for (False), in the watches made from now on; whether they are told.");

static PyObject *use_watchers(PyObject *Py_UNUSED(module), PyObject *on)
{
    if (PyObject_IsTrue(on) == 1)
        use_dict_watcher();
    else
        drop_dict_watcher();
    return PyBool_FromLong(changes.id >= 0);
}

PyDoc_STRVAR(changed_doc, "changed(dict, /)\n--\n\n"
    "How many changes of dicts were told so far; those of this one are from now on.");

static PyObject *changed(PyObject *Py_UNUSED(module), PyObject *dict)
{
    watched_change(dict);
    return PyLong_FromUnsignedLongLong(changes.count);
}

/* ---------------------------------------------------------------------------------------------------- one attribute */

/* What is empty: whatever Python takes for false; None alone; None or a chain of hooks without one. */
enum { FALSE_VALUE = 'f', NONE_ALONE = 'n', EMPTY_CHAIN = 'c' };

/*
 * An attribute that must be empty for a hit in C. It is read where `object.name` would read it: in the instance's dict,
 * else on the class, whose answer stands until the class changes (which its version tells).
 */
typedef struct {
    PyObject *object, *name, *names;    /* the last: the instance's dict, NULL where it has none */
    int kind;
    PyObject *on_class;                 /* what the class has under the name, or NULL */
    unsigned version;                   /* the class's when it was asked; 0: not yet, or no answer that stands */
    PyObject *chain, *chained;          /* a chain of hooks that was found there, and its dict */
    unsigned chain_version;             /* its class's, which has nothing to say about the list; 0: not asked */
    PyObject *list;                     /* the list that was found there, or in the chain: its items tell of nothing */
    uint64_t watched_dict;                      /* who is told of changes of all dicts that it is read from; 0: nobody */
} Watch;

static void take_watch(Watch *watch, PyObject *object, PyObject *name, int kind)
{
    watch->object = Py_NewRef(object);
    watch->name = Py_NewRef(name);
    watch->kind = kind;
    PyUnicode_InternInPlace(&watch->name);
    watch->names = PyObject_GenericGetDict(object, NULL);
    PyErr_Clear();                      /* without one the object is asked */
    watch->watched_dict = watched_change(watch->names);
}

static int visit_watch(const Watch *watch, visitproc visit, void *arg)
{
    Py_VISIT(watch->object);
    Py_VISIT(watch->names);
    Py_VISIT(watch->on_class);
    Py_VISIT(watch->chain);
    Py_VISIT(watch->chained);
    Py_VISIT(watch->list);
    return 0;
}

static void clear_watch(Watch *watch)
{
    Py_CLEAR(watch->object);
    Py_CLEAR(watch->name);
    Py_CLEAR(watch->names);
    Py_CLEAR(watch->on_class);
    Py_CLEAR(watch->chain);
    Py_CLEAR(watch->chained);
    Py_CLEAR(watch->list);
}

/* Whether the dict that was taken is still the object's. No dict tells of being replaced: a look finds it, later. */
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
    return watch->version != 0 && watch->version == Py_TYPE(watch->object)->tp_version_tag;
}

/* Ask the class again; 0 where it has a descriptor under the name, which decides about the attribute itself. */
static int read_class(Watch *watch)
{
    PyTypeObject *type = Py_TYPE(watch->object);
    Py_XSETREF(watch->on_class, Py_XNewRef(_PyType_Lookup(type, watch->name)));
    int decides = watch->on_class != NULL && Py_TYPE(watch->on_class)->tp_descr_get != NULL;
    watch->version = decides || !reads_its_dict(type) ? 0 : type->tp_version_tag;
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
        watch->watched_dict = watch->watched_dict == watched_change(watch->chained) ? watch->watched_dict : 0;
    }
    int plain = watch->chained != NULL && reads_its_dict(type) && _PyType_Lookup(type, torch.calls) == NULL;
    watch->chain_version = plain ? type->tp_version_tag : 0;
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
    return changes.id >= 0 && watch->watched_dict == changes.watcher_id;
}

static int chain_unchanged(const Watch *watch)
{
    return watch->chain == NULL
        || (watch->chain_version != 0 && watch->chain_version == Py_TYPE(watch->chain)->tp_version_tag);
}

/* Whether it is as empty as when it showed nothing, if no dict has told of a change since. */
static int still_shows_no_hooks(const Watch *watch)
{
    return class_unchanged(watch) && (watch->list == NULL || PyList_GET_SIZE(watch->list) == 0) && chain_unchanged(watch);
}
