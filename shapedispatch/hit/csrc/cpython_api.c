/*
 * What of CPython is not public or not the same in every version, each in one place. Checked on 3.11, 3.12 and 3.13.
 *
 * _PyType_Lookup, to read what a class has under a name without running code: all public functions ask its metaclass.
 * PyTypeObject.tp_version_tag, to see that a class has changed: nothing public says so to whom holds no class.
 * PyMemberDescrObject, for where a field in __slots__ lies; `field_at` refuses what is none.
 * PyGetSetDescrObject, for the C function behind an attribute; `bind_attribute` refuses what has none.
 *
 * A Python that has lost one of them cannot compile this module, which is optional: calls then take the Python path.
 */

#if PY_VERSION_HEX < 0x030C0000
#include <structmember.h>
#define Py_T_BOOL T_BOOL
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

/* What a weak reference leads to, as a new reference; NULL where that is gone. */
static PyObject *referent(PyObject *reference)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found;
    if (PyWeakref_GetRef(reference, &found) < 0)
        PyErr_Clear();                  /* it is a weak reference */
    return found;
#else
    PyObject *found = PyWeakref_GET_OBJECT(reference);
    return found == Py_None ? NULL : Py_NewRef(found);
#endif
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
