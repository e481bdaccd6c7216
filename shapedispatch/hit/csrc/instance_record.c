/*
 * What a build's guards read of an instance and of all that hangs on it, as it was when they held: while nothing of it
 * has changed, they hold.
 *
 * Nothing is held that may refer back to the instance. It is reached from there by way of dicts, and each of them is
 * found unchanged before what it holds is touched: so that is still there.
 */

/* ------------------------------------------------------------------------------------------------- what was read of it */

typedef struct {
    PyObject *object;
    PyTypeObject *type;
    unsigned version;                   /* the type's */
    int dicts_end;                      /* the dicts before this one, from the last object's on, hang on this object */
    PyObject *names, *const *names_at;  /* its dict, the first of them, and where it keeps it; NULL: that is not read */
} SeenObject;

typedef struct {
    PyObject *dict;
    uint64_t mark;
} SeenDict;

typedef struct {
    PyObject *tensor;
    Metadata metadata;
    Memory memory;
    int numbers_at;                     /* its sizes and strides */
    uint64_t mark;                      /* of its dict, if it has one */
} SeenTensor;

typedef struct {
    PyObject *object, *held;            /* a list and a tuple of its items; a function and its code */
} SeenHolder;

typedef struct Record {
    struct Record *next;
    PyObject *address;                  /* of the instance, which is not held */
    PyObject *instance;                 /* a weak reference to it */
    uint64_t count;                     /* of changes of dicts when all of it was as it was */
    int complete;                       /* whether all that is read can be looked at here */
    int verdict;                        /* whether the guards held then */
    int idle, wait;                     /* calls until it is looked at; how many that are the next time */
    Array objects, dicts, tensors, holders, numbers;
} Record;

static void free_record(Record *record)
{
    SeenHolder *holders = record->holders.items;
    for (int i = 0; i < record->holders.count; i++)
        Py_DECREF(holders[i].held);
    Py_XDECREF(record->instance);
    for (Array *array = &record->objects; array <= &record->numbers; array++)
        PyMem_Free(array->items);
    PyMem_Free(record);
}

/* ------------------------------------------------------------------------------------------------------- as it was then */

/* Where a watcher sees changes, dicts need not be touched, and all of them are asked first. */
static int dicts_unchanged(Record *record)
{
    const SeenDict *dicts = record->dicts.items;
    for (int i = 0; record->count != changes.count && i < record->dicts.count; i++)
        if (!dict_unchanged(dicts[i].dict, dicts[i].mark, record->count))
            return 0;
    record->count = changes.count;
    return 1;
}

static int objects_unchanged(const Record *record)
{
    const SeenDict *dict = record->dicts.items, *first = dict;
    const SeenObject *seen = record->objects.items, *end = seen + record->objects.count;
    for (; seen < end; seen++) {
        if (Py_TYPE(seen->object) != seen->type || !has_version(seen->type, seen->version)
            || (seen->names != NULL && *seen->names_at != seen->names))
            return 0;
        for (; !BY_WATCHER && dict < first + seen->dicts_end; dict++)
            if (!dict_unchanged(dict->dict, dict->mark, 0))
                return 0;
    }
    return 1;
}

static int tensor_unchanged(const Record *record, const SeenTensor *seen)
{
    Metadata now;
    const int64_t *numbers = record->numbers.items;
    if (!same_memory(seen->tensor, &seen->memory, &seen->metadata, numbers)
        && !(metadata_of(seen->tensor, &now) && same_metadata(&now, &seen->metadata, numbers + seen->numbers_at)))
        return 0;
    return BY_WATCHER || seen->mark == NEVER || dict_unchanged(seen->metadata.names, seen->mark, 0);
}

static int holder_unchanged(PyObject *object, PyObject *held)
{
    if (!PyList_CheckExact(object))
        return PyFunction_GET_CODE(object) == held;
    if (PyList_GET_SIZE(object) != PyTuple_GET_SIZE(held))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(held); i++)
        if (PyList_GET_ITEM(object, i) != PyTuple_GET_ITEM(held, i))
            return 0;
    return 1;
}

/* Whether all is as it was. Objects and their dicts come first: they hold the others. */
static int record_holds(Record *record)
{
    const SeenHolder *holders = record->holders.items;
    if (!record->complete || (BY_WATCHER && !dicts_unchanged(record)) || !objects_unchanged(record))
        return 0;
    for (int i = 0; i < record->holders.count; i++)
        if (!holder_unchanged(holders[i].object, holders[i].held))
            return 0;
    const SeenTensor *tensors = record->tensors.items;
    for (int i = 0; i < record->tensors.count; i++)
        if (!tensor_unchanged(record, &tensors[i])) {
            PyErr_Clear();
            return 0;
        }
    return 1;
}

/* -------------------------------------------------------------------------------------------------------------- reading */

typedef struct {
    PyObject *object, *tree;
} Pending;

/* Objects wait for their turn, so that the dicts that hang on one stand together. */
typedef struct {
    Record *record;
    Array pending;
} Reading;

/* Each of these returns whether all can be looked at later. None runs Python code. */
static int read_value(Reading *reading, PyObject *tree, PyObject *value);

/* Where a watcher sees changes, all dicts stand among the dicts; else each is touched only after what holds it. */
static int mark(Record *record, PyObject *dict, uint64_t *of_tensor)
{
    uint64_t mark = mark_dict(dict);
    if (of_tensor != NULL)
        *of_tensor = mark;
    if (of_tensor == NULL || BY_WATCHER) {
        SeenDict *seen = append(&record->dicts, sizeof *seen);
        if (seen == NULL)
            return 0;
        *seen = (SeenDict){dict, mark};
    }
    return mark != NEVER;
}

static int read_tensor(Record *record, PyObject *tensor)
{
    SeenTensor *seen = append(&record->tensors, sizeof *seen);
    Metadata now;
    if (seen == NULL || !metadata_of(tensor, &now))
        return 0;
    *seen = (SeenTensor){tensor, now, {NULL, NULL, -1}, record->numbers.count, NEVER};
    for (int i = 0; i < 2 * now.view.ndim; i++) {
        int64_t *number = append(&record->numbers, sizeof *number);
        if (number == NULL)
            return 0;
        *number = i < now.view.ndim ? now.view.sizes[i] : now.view.strides[i - now.view.ndim];
    }
    return note_memory(tensor, &now.view, &record->numbers, &seen->memory)
        && (now.names == NULL || mark(record, now.names, &seen->mark));
}

static int read_items(Reading *reading, PyObject *tree, PyObject *dict)
{
    if (is_compared(tree))
        return 0;
    FOR_EACH_BRANCH(i, tree) {
        PyObject *key = part(tree, i, 1), *value = NULL;
        if (way(tree, i) == ITEM)
            value = PyDict_GetItemWithError(dict, key);
        else if (way(tree, i) == NTH_ITEM)
            value = nth_value(dict, key);
        if (value == NULL || !read_value(reading, part(tree, i, 2), value))
            return 0;
    }
    return 1;
}

static int read_sequence(Reading *reading, PyObject *tree, PyObject *values, Py_UCS4 by)
{
    FOR_EACH_BRANCH(i, tree) {
        PyObject *value = item_at(values, part(tree, i, 1));
        if (way(tree, i) != by || value == NULL || !read_value(reading, part(tree, i, 2), value))
            return 0;
    }
    return 1;
}

/* Takes over `held`. */
static int hold_beside(Reading *reading, PyObject *object, PyObject *held)
{
    SeenHolder *seen = held == NULL ? NULL : append(&reading->record->holders, sizeof *seen);
    if (seen == NULL) {
        Py_XDECREF(held);
        return 0;
    }
    *seen = (SeenHolder){object, held};
    return 1;
}

/* Items that may change, or refer back to the instance, are left to the guards. */
static int read_list(Reading *reading, PyObject *tree, PyObject *list)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++)
        if (!is_constant(PyList_GET_ITEM(list, i)))
            return 0;
    return hold_beside(reading, list, PyList_AsTuple(list))
        && read_sequence(reading, tree, list, LIST_ITEM);
}

static int read_function(Reading *reading, PyObject *tree, PyObject *function)
{
    FOR_EACH_BRANCH(i, tree)
        if (way(tree, i) != CODE_OF || !is_leaf(part(tree, i, 2)))
            return 0;
    return hold_beside(reading, function, Py_NewRef(PyFunction_GET_CODE(function)));
}

static int read_value(Reading *reading, PyObject *tree, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (is_constant(value) && is_leaf(tree))
        return 1;
    if (type == torch.tensor || type == torch.parameter)
        return is_leaf(tree) && read_tensor(reading->record, value);
    if (is_plain_dict(value))
        return mark(reading->record, value, NULL) && read_items(reading, tree, value);
    if (type == &PyTuple_Type)
        return (!is_compared(tree) || is_constant(value)) && read_sequence(reading, tree, value, TUPLE_ITEM);
    if (type == &PyList_Type)
        return read_list(reading, tree, value);
    if (PyFunction_Check(value))
        return read_function(reading, tree, value);
    if (is_read(tree) || PyType_IsSubtype(type, torch.base))
        return 0;
    Pending *pending = append(&reading->pending, sizeof *pending);
    if (pending != NULL)
        *pending = (Pending){value, tree};
    return pending != NULL;
}

/* ----------------------------------------------------------------------------------------------- objects and classes */

/* The function that a property calls for its value: the class may stay as it is, and its code be replaced. */
static int read_property(Reading *reading, PyObject *tree, PyObject *property)
{
    FOR_EACH_BRANCH(i, tree) {
        if (way(tree, i) != ATTRIBUTE || PyUnicode_CompareWithASCIIString(part(tree, i, 1), "fget") != 0)
            return 0;
        PyObject *getter = PyObject_GetAttr(property, part(tree, i, 1));
        int seen = getter != NULL && PyFunction_Check(getter) && read_function(reading, part(tree, i, 2), getter);
        Py_XDECREF(getter);             /* the property holds it */
        if (!seen)
            return 0;
    }
    return 1;
}

static int read_of_type(Reading *reading, PyObject *tree, PyObject *value)
{
    if (Py_IS_TYPE(value, &PyProperty_Type))
        return read_property(reading, tree, value);
    return PyFunction_Check(value) ? read_function(reading, tree, value) : is_constant(value) && is_leaf(tree);
}

static int read_type_dict(Reading *reading, PyObject *tree, PyTypeObject *type)
{
    FOR_EACH_BRANCH(i, tree) {
        PyObject *value = PyDict_GetItemWithError(dict_of_type(type), part(tree, i, 1));
        if (way(tree, i) != ITEM || value == NULL || !read_of_type(reading, part(tree, i, 2), value))
            return 0;
    }
    return 1;
}

/* What stands on a class and its bases stays as long as its version does. */
static int read_type(Reading *reading, PyObject *tree, PyTypeObject *type)
{
    FOR_EACH_BRANCH(i, tree) {
        PyObject *inner = part(tree, i, 2), *base;
        if (way(tree, i) == TYPE_DICT && !read_type_dict(reading, inner, type))
            return 0;
        if (way(tree, i) != TYPE_DICT && way(tree, i) != MRO_OF)
            return 0;
        if (way(tree, i) == MRO_OF)
            FOR_EACH_BRANCH(j, inner)
                if ((base = item_at(type->tp_mro, part(inner, j, 1))) == NULL || way(inner, j) != TUPLE_ITEM
                    || !read_type(reading, part(inner, j, 2), (PyTypeObject *)base))
                    return 0;
    }
    return 1;
}

/* `object.key`, where Python's own rule finds it in the object's dict, or a constant or a method on its class. */
static int read_attribute(Reading *reading, PyObject *tree, PyObject *key, PyObject *object, PyObject *names)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject *on_class = class_attribute(type, key), *rule = class_attribute(type, torch.getattribute);
    if (names == NULL || rule != class_attribute(&PyBaseObject_Type, torch.getattribute)
        || (on_class != NULL && Py_TYPE(on_class)->tp_descr_set != NULL))
        return 0;
    PyObject *value = PyDict_GetItemWithError(names, key);
    if (value != NULL || on_class == NULL)
        return value != NULL && read_value(reading, tree, value);
    return is_leaf(tree) && (is_constant(on_class) || (PyFunction_Check(on_class) && !is_read(tree)));
}

static int read_branch(Reading *reading, PyObject *tree, Py_ssize_t i, PyObject *object, PyObject *names)
{
    PyObject *inner = part(tree, i, 2);
    switch (way(tree, i)) {
    case DICT_OF:
        return names != NULL && read_items(reading, inner, names);
    case ATTRIBUTE:
        return read_attribute(reading, inner, part(tree, i, 1), object, names);
    case TYPE_OF:
        return read_type(reading, inner, Py_TYPE(object));
    default:
        return 0;
    }
}

static int read_object(Reading *reading, PyObject *tree, PyObject *object)
{
    Record *record = reading->record;
    SeenObject *seen = append(&record->objects, sizeof *seen);
    int at = record->objects.count - 1;
    PyObject *names = is_leaf(tree) ? NULL : instance_dict(object);
    if (seen == NULL || (names != NULL && !(PyDict_CheckExact(names) && mark(record, names, NULL))))
        return 0;
    unsigned version = class_version(Py_TYPE(object), torch.calls);
    *seen = (SeenObject){object, Py_TYPE(object), version, 0, names, names == NULL ? NULL : dict_place(object)};
    if (seen->version == 0)
        return 0;
    FOR_EACH_BRANCH(i, tree)
        if (!read_branch(reading, tree, i, object, names))
            return 0;
    ((SeenObject *)record->objects.items)[at].dicts_end = record->dicts.count;
    return 1;
}

/* What the tree says is read of an instance, as it is now; NULL where memory is out. No error is set. */
static Record *record_of(PyObject *instance, PyObject *tree)
{
    Record *record = PyMem_Calloc(1, sizeof *record);
    Reading reading = {record, {NULL, 0, 0}};
    if (record == NULL || (record->instance = PyWeakref_NewRef(instance, NULL)) == NULL) {
        PyErr_Clear();
        PyMem_Free(record);
        return NULL;
    }
    record->address = instance;
    record->count = changes.count;
    record->complete = read_value(&reading, tree, instance);
    for (int i = 0; record->complete && i < reading.pending.count; i++) {
        Pending next = ((Pending *)reading.pending.items)[i];
        record->complete = read_object(&reading, next.tree, next.object);
    }
    PyMem_Free(reading.pending.items);
    PyErr_Clear();
    return record;
}
