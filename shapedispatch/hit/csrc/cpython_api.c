/*
 * What of CPython is not public or not the same in every version, each in one place. Checked on 3.11, 3.12 and 3.13.
 *
 * _PyType_Lookup, to read what a class has under a name without running code: all public functions ask its metaclass.
 * PyTypeObject.tp_version_tag, to see that a class has changed: nothing public says so to whom holds no class.
 * PyMemberDescrObject, for where a field in __slots__ lies; `field_at` refuses what is none.
 * PyGetSetDescrObject, for the C function behind an attribute; `take_attribute` refuses what has none.
 * _PyObject_GetDictPtr, to see that an instance has another dict now: the public function makes references.
 * PyWeakReference.wr_object, to see what a weak reference leads to: the public function of 3.13 takes a lock.
 * PyDictObject.ma_version_tag, up to 3.11, to see that a dict has changed; native.py finds out whether it shows all.
 *
 * A Python that has lost one of them cannot compile this module, which is optional: calls then take the Python path.
 */

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_BOOL T_BOOL
#define Py_T_INT T_INT
#define Py_T_UINT T_UINT
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

/* Borrowed; NULL without an error where the class has nothing under the name. */
static PyObject *class_attribute(PyTypeObject *type, PyObject *name)
{
    return _PyType_Lookup(type, name);
}

/* A number that no later state of the class has; 0 where there is none to be had. `name` is any name. */
static unsigned class_version(PyTypeObject *type, PyObject *name)
{
#if PY_VERSION_HEX >= 0x030C0000
    (void)name;
    return PyUnstable_Type_AssignVersionTag(type) ? type->tp_version_tag : 0;
#else
    _PyType_Lookup(type, name);         /* a class gets a number when it is asked for something */
    return type->tp_version_tag;
#endif
}

/* Whether the class is as it was when it had this number; nothing is known of 0. */
static int has_version(const PyTypeObject *type, unsigned version)
{
    return version != 0 && version == type->tp_version_tag;
}

/* Where an instance keeps a field of its __slots__; -1 with an error set where it has none of that name. */
static Py_ssize_t field_at(PyTypeObject *type, const char *name)
{
    Py_ssize_t at = -1;
    PyObject *member = PyObject_GetAttrString((PyObject *)type, name);
    if (member == NULL)
        return -1;
    if (Py_IS_TYPE(member, &PyMemberDescr_Type) && PyDescr_TYPE(member) == type
        && ((PyMemberDescrObject *)member)->d_member->type == Py_T_OBJECT_EX)
        at = ((PyMemberDescrObject *)member)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%s.%s is no field in __slots__", type->tp_name, name);
    Py_DECREF(member);
    return at;
}

/* What a weak reference leads to, as a new reference; NULL where that is gone, or going. */
static PyObject *referent(PyObject *reference)
{
    PyObject *found = ((PyWeakReference *)reference)->wr_object;
    return found == Py_None || Py_REFCNT(found) <= 0 ? NULL : Py_NewRef(found);
}

/* Whether a weak reference leads nowhere. */
static int is_gone(PyObject *reference)
{
    PyObject *found = referent(reference);
    Py_XDECREF(found);
    return found == NULL;
}

/* 1, 0, or -1 with an error set. Takes over the verdict. */
static int is_true(PyObject *verdict)
{
    int holds = verdict == NULL ? -1 : PyObject_IsTrue(verdict);
    Py_XDECREF(verdict);
    return holds;
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

static PyObject *call_with(PyObject *callable, PyObject *args, PyObject *kwargs)
{
    if (PyDict_GET_SIZE(kwargs) == 0)
        return PyObject_Vectorcall(callable, &PyTuple_GET_ITEM(args, 0), (size_t)PyTuple_GET_SIZE(args), NULL);
    return PyObject_Call(callable, args, kwargs);
}

/* `except Exception: return fallback(...)`: meanwhile what the build raised is the exception being handled. */
static PyObject *fall_back(PyObject *fallback, PyObject *args, PyObject *kwargs)
{
    PyObject *before = PyErr_GetHandledException(), *error = take_raised();
    PyErr_SetHandledException(error);
    PyObject *answer = call_with(fallback, args, kwargs);
    PyErr_SetHandledException(before);
    Py_XDECREF(before);
    Py_XDECREF(error);
    return answer;
}

/* A field of a Python object with __slots__, borrowed; NULL where it is unset. */
static PyObject *field(PyObject *object, Py_ssize_t at)
{
    PyObject *value;
    memcpy(&value, (const char *)object + at, sizeof value);
    return value;
}

/* ----------------------------------------------------------------------- references that the garbage collector sees */

/* The fields of a struct from `first` to `last`, all of them `PyObject *`. */
#define REFERENCES(of, first, last) (PyObject **)&(of)->first, (PyObject **)&(of)->last

static int visit_references(PyObject **first, PyObject **last, visitproc visit, void *arg)
{
    for (PyObject **place = first; place <= last; place++)
        Py_VISIT(*place);
    return 0;
}

static void clear_references(PyObject **first, PyObject **last)
{
    for (PyObject **place = first; place <= last; place++)
        Py_CLEAR(*place);
}

/* Lets go of an object by what its type clears; not for types with subclasses, which clear more than these. */
static void clear_and_free(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_TYPE(self)->tp_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* ------------------------------------------------------------------------------------------ reading without running code */

/* All of these are borrowed, and NULL, maybe with an error, where there is none. */

/* Where an instance keeps its dict, which is in the instance as long as it is of its class. */
static PyObject *const *dict_place(PyObject *object)
{
    return _PyObject_GetDictPtr(object);
}

static PyObject *instance_dict(PyObject *object)
{
    PyObject *const *place = dict_place(object);
    return place == NULL ? NULL : *place;
}

static PyObject *dict_of_type(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *dict = PyType_GetDict(type);
    Py_XDECREF(dict);                   /* the type holds it */
    return dict;
#else
    return type->tp_dict;
#endif
}

/* The item of a list or a tuple at a place that is given as Python's integer. */
static PyObject *item_at(PyObject *values, PyObject *place)
{
    Py_ssize_t i = PyLong_CheckExact(place) ? PyLong_AsSsize_t(place) : -1;
    return i >= 0 && i < PySequence_Fast_GET_SIZE(values) ? PySequence_Fast_GET_ITEM(values, i) : NULL;
}

/* The value of a dict's item at a place in its order. */
static PyObject *nth_value(PyObject *dict, PyObject *place)
{
    PyObject *value = NULL;
    Py_ssize_t at = 0, left = PyLong_CheckExact(place) ? PyLong_AsSsize_t(place) : -1;
    for (; left >= 0; left--)
        if (!PyDict_Next(dict, &at, NULL, &value))
            return NULL;
    return value;
}

/* In an OrderedDict the order of several items may change, and the dict in it tells nothing of that. */
static int is_plain_dict(PyObject *value)
{
    return PyDict_CheckExact(value) || (PyODict_CheckExact(value) && PyDict_GET_SIZE(value) <= 1);
}

/* ------------------------------------------------------------------------------------------------- changes of dicts */

/*
 * Up to Python 3.11 a dict has a number, and with each change another that no dict has had. From 3.12 on a watcher sees
 * that a dict is about to change: what stood in one of which it has seen nothing since stands there now. Where native.py
 * finds a change that is not seen, neither is relied on.
 */
static struct {
    int relied_on;
    int id;                             /* of the watcher; negative without one */
    uint64_t count;                     /* of changes that were seen, of any dict */
    uint64_t watcher;                   /* which of the watchers in turn: none sees what another watches */
} changes = {.id = -1, .count = 1, .watcher = 1};

enum { NEVER = 0 };     /* no count of changes, no watcher, and no number of a dict */
enum { BY_WATCHER = PY_VERSION_HEX >= 0x030C0000 };

#if PY_VERSION_HEX >= 0x030C0000
/* When the last change was seen of any of the dicts that share a place here, by their addresses. */
enum { PLACE_BITS = 12 };
static uint64_t last_changes[1 << PLACE_BITS];

static uint64_t *last_change(const PyObject *dict)
{
    return &last_changes[(uint64_t)(uintptr_t)dict * 0x9E3779B97F4A7C15u >> (64 - PLACE_BITS)];
}

static int note_change(PyDict_WatchEvent Py_UNUSED(event), PyObject *dict, PyObject *Py_UNUSED(key),
    PyObject *Py_UNUSED(value))
{
    *last_change(dict) = ++changes.count;
    return 0;
}

static void use_dict_changes(void)
{
    if (changes.id < 0)
        changes.id = PyDict_AddWatcher(note_change);
    if (changes.id < 0)
        PyErr_Clear();                  /* there are no more than eight */
    changes.relied_on = changes.id >= 0;
}

static void drop_dict_changes(void)
{
    if (changes.id >= 0 && PyDict_ClearWatcher(changes.id) < 0)
        PyErr_Clear();
    changes.id = -1;
    changes.relied_on = 0;
    changes.count++;
    changes.watcher++;
}

/* The watcher that sees changes of the dict from now on, or NEVER. */
static uint64_t watch_dict(PyObject *dict)
{
    int plain = dict != NULL && (PyDict_CheckExact(dict) || PyODict_CheckExact(dict));
    if (changes.id >= 0 && plain && PyDict_Watch(changes.id, dict) == 0)
        return changes.watcher;
    PyErr_Clear();
    return NEVER;
}

static uint64_t mark_dict(PyObject *dict)
{
    return watch_dict(dict);
}

/* Whether it is as when `mark_dict` gave this mark, at that count of changes or a later one; it is not touched. */
static int dict_unchanged(const PyObject *dict, uint64_t mark, uint64_t count)
{
    return mark == changes.watcher && *last_change(dict) <= count;
}

static uint64_t change_number(PyObject *dict)
{
    watch_dict(dict);
    return changes.count;
}
#else
static void use_dict_changes(void)
{
    changes.relied_on = 1;
}

static void drop_dict_changes(void)
{
    changes.relied_on = 0;
}

static uint64_t watch_dict(PyObject *Py_UNUSED(dict))
{
    return NEVER;
}

/* What tells this state of a dict from all others. */
static uint64_t mark_dict(PyObject *dict)
{
    return ((PyDictObject *)dict)->ma_version_tag;
}

static int dict_unchanged(const PyObject *dict, uint64_t mark, uint64_t Py_UNUSED(count))
{
    return mark == ((const PyDictObject *)dict)->ma_version_tag;
}

static uint64_t change_number(PyObject *dict)
{
    return mark_dict(dict);
}
#endif

PyDoc_STRVAR(use_watchers_doc, "use_watchers(on, /)\n--\n\n"
    "Rely on seeing changes of dicts from now on, or not (False); whether they are seen.");

static PyObject *use_watchers(PyObject *Py_UNUSED(module), PyObject *on)
{
    if (PyObject_IsTrue(on) == 1)
        use_dict_changes();
    else
        drop_dict_changes();
    return PyBool_FromLong(changes.relied_on);
}

PyDoc_STRVAR(changed_doc, "changed(dict, /)\n--\n\n"
    "A number that is a larger one after each change of this dict.");

static PyObject *changed(PyObject *Py_UNUSED(module), PyObject *dict)
{
    if (!PyDict_Check(dict))
        return PyErr_Format(PyExc_TypeError, "changed takes a dict");
    return PyLong_FromUnsignedLongLong(change_number(dict));
}

/* ---------------------------------------------------------------------------------------------- a module's variable */

/* What a module's variable was when its dict was in this state. */
typedef struct {
    uint64_t mark, count;
    int at_least;
} SeenVariable;

/* A module's variable, read where `module.name` would read it; also true where it is no number or is missing. */
static int variable_is_at_least(PyObject *names, PyObject *name, long bound, SeenVariable *seen)
{
    if (seen->mark != NEVER && changes.relied_on && dict_unchanged(names, seen->mark, seen->count))
        return seen->at_least;
    *seen = (SeenVariable){mark_dict(names), changes.count, 1};
    PyObject *value = PyDict_GetItemWithError(names, name);
    long number = value == NULL ? bound : PyLong_AsLong(value);
    if (PyErr_Occurred())
        seen->mark = NEVER;
    else
        seen->at_least = number >= bound;
    return seen->at_least;
}

/* -------------------------------------------------------------------------------------------------- lists of structs */

/* Items of one size, one after the other. */
typedef struct {
    void *items;
    int count, room;
} Array;

/* A place for one item more, filled with zeros; NULL where memory is out. */
static void *append(Array *array, size_t size)
{
    if (array->count == array->room) {
        int room = array->room == 0 ? 4 : 2 * array->room;
        void *items = PyMem_Realloc(array->items, (size_t)room * size);
        if (items == NULL)
            return NULL;
        array->items = items;
        array->room = room;
    }
    return memset((char *)array->items + (size_t)array->count++ * size, 0, size);
}
