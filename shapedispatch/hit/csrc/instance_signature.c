/* An argument of a class of somebody's own, signed by its type, or by what keys/instances.py says that it holds. */

/* ------------------------------------------------------------------------------------------------------- by its type */

/* Whether tree.tensors may find tensors inside an instance of this type: what it finds there is Python's to key. */
static int may_hold_tensors(PyTypeObject *type)
{
    return PyType_IsSubtype(type, torch.base) || PyType_HasFeature(type, Py_TPFLAGS_LIST_SUBCLASS)
        || PyType_HasFeature(type, Py_TPFLAGS_TUPLE_SUBCLASS) || PyType_HasFeature(type, Py_TPFLAGS_DICT_SUBCLASS)
        || class_attribute(type, torch.dataclass_fields) != NULL;
}

/* The same, asked once of each state of a class: no other class ever has the version of one. */
static int holds_no_tensors(PyTypeObject *type)
{
    static unsigned found[16];
    unsigned *seen = &found[((uintptr_t)type >> 4) % 16];
    if (has_version(type, *seen))
        return 1;
    unsigned version = class_version(type, torch.dataclass_fields);
    int none = !may_hold_tensors(type);
    *seen = none ? version : 0;
    return none;
}

/* What counts by its type: a module, or a method's `self`. */
static int sign_kind(CallSignature *sig, PyTypeObject *type)
{
    return holds_no_tensors(type) && sign_identical(sig, KIND, (PyObject *)type);
}

/* ------------------------------------------------------------------------------------------------ by what it is made of */

enum { MOST_ATTRIBUTES = 64, MOST_CLASSES = 16 /* whose answers are kept */ };

/* Whether all that instances hold is in their dict, asked of Python once of each state of a class. */
static int is_ordinary(PyTypeObject *type)
{
    static struct {
        unsigned version;
        int answer;
    } seen[MOST_CLASSES];
    int at = ((uintptr_t)type >> 4) % MOST_CLASSES;
    if (!has_version(type, seen[at].version)) {
        PyObject *answer = PyObject_CallOneArg(torch.is_ordinary, (PyObject *)type);
        seen[at].answer = answer == Py_True;
        seen[at].version = answer == NULL ? 0 : class_version(type, torch.dataclass_fields);
        Py_XDECREF(answer);
    }
    return seen[at].version != 0 && seen[at].answer;
}

/* Whether the class says what an attribute is that the instance has. */
static int is_computed(PyTypeObject *type, PyObject *name)
{
    PyObject *in_class = class_attribute(type, name);
    return in_class != NULL && Py_TYPE(in_class)->tp_descr_set != NULL;
}

/* A function counts by its name: builds ask for its code, and what that reads. */
static int sign_function(CallSignature *sig, PyObject *value)
{
    PyFunctionObject *function = (PyFunctionObject *)value;
    PyObject *module = function->func_module, *name = function->func_qualname;
    return module != NULL && PyUnicode_CheckExact(module) && PyUnicode_CheckExact(name)
        && push(sig, tagged(FUNCTION, 0)) && sign_equal(sig, module) && sign_equal(sig, name);
}

/* A function of C's that is bound to no instance counts by what it is, as key._builtin has it. */
static int sign_builtin(CallSignature *sig, PyObject *value)
{
    PyObject *self = PyCFunction_GET_SELF(value);
    return (self == NULL || PyModule_Check(self) || PyType_Check(self)) && sign_equal(sig, value);
}

static int sign_attribute(CallSignature *sig, PyObject *value)
{
    return Py_IS_TYPE(value, &PyFunction_Type) ? sign_function(sig, value) : is_constant(value) && sign_item(sig, value);
}

/* Whether a dict holds the fields of a dataclass in their order, and nothing else; of others the key is Python's. */
static int has_its_fields(PyObject *fields, PyObject *dict)
{
    Py_ssize_t of_class = 0, of_instance = 0;
    PyObject *field, *name, *value;
    if (!PyDict_CheckExact(fields) || PyDict_GET_SIZE(fields) != PyDict_GET_SIZE(dict))
        return 0;
    while (PyDict_Next(fields, &of_class, &field, &value) && PyDict_Next(dict, &of_instance, &name, &value))
        if (field != name)
            return 0;
    return 1;
}

/* What stands in an instance's dict, which is held: of a dataclass any value, else what `sign_attribute` takes. */
static int sign_each(CallSignature *sig, PyTypeObject *type, PyObject *dict, int any)
{
    Py_ssize_t place = 0, size = PyDict_GET_SIZE(dict);
    PyObject *name, *item;
    while (PyDict_Next(dict, &place, &name, &item))
        if (!PyUnicode_CheckExact(name) || is_computed(type, name) || !sign_equal(sig, name)
            || !(any ? sign_item(sig, item) : sign_attribute(sig, item)) || PyDict_GET_SIZE(dict) != size)
            return 0;
    return 1;
}

/* An instance of an ordinary class, whose attributes are numbers, words, functions, or tuples of the first two. */
static int sign_attributes(CallSignature *sig, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    PyObject *fields = class_attribute(type, torch.dataclass_fields);
    PyObject *dict = is_ordinary(type) ? instance_dict(value) : NULL;
    if (dict == NULL || PyDict_GET_SIZE(dict) > MOST_ATTRIBUTES || (fields != NULL && !has_its_fields(fields, dict))
        || !push(sig, tagged(INSTANCE, (uint64_t)PyDict_GET_SIZE(dict))) || !push(sig, (uint64_t)(uintptr_t)type)
        || !hold(sig, (PyObject *)type))
        return 0;
    Py_INCREF(dict);
    int supported = sign_each(sig, type, dict, fields != NULL);
    Py_DECREF(dict);
    return supported;
}

/* Whether it is a named tuple, which is read as tuples are, and can have nothing beside its items. */
static int is_named_tuple(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return PyTuple_Check(value) && type->tp_iter == PyTuple_Type.tp_iter && type->tp_dictoffset == 0
        && class_attribute(type, torch.fields) != NULL;
}

/* What is of none of the types that call_signature.c knows; a member of an enumeration is the only one of its name. */
static int sign_instance(CallSignature *sig, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyFunction_Type)
        return sign_function(sig, value);
    if (type == &PyCFunction_Type)
        return sign_builtin(sig, value);
    if (PyType_IsSubtype(type, torch.enumeration))
        return sign_identical(sig, IDENTICAL, value);
    if (is_named_tuple(value))
        return sign_sequence(sig, value) && hold(sig, (PyObject *)type);
    return sign_attributes(sig, value);
}
