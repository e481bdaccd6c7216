/*
 * What guards read of a value, as a tree: (read, ((way, key, tree), ...)), made by functions/guards/instance_guards.py. The
 * ways lead from a value to the next; `read` says what is read of the value itself beside type and identity: '=' is all.
 */
enum {
    DICT_OF = 'd', ITEM = 'k', NTH_ITEM = 'i', LIST_ITEM = 'l', TUPLE_ITEM = 't', ATTRIBUTE = 'a', CODE_OF = 'c',
    TYPE_OF = 'T', TYPE_DICT = 'D', MRO_OF = 'M'
};

#define FOR_EACH_BRANCH(i, tree) for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(PyTuple_GET_ITEM(tree, 1)); i++)

static PyObject *part(PyObject *tree, Py_ssize_t i, int which)
{
    return PyTuple_GET_ITEM(PyTuple_GET_ITEM(PyTuple_GET_ITEM(tree, 1), i), which);
}

static Py_UCS4 way(PyObject *tree, Py_ssize_t i)
{
    return PyUnicode_READ_CHAR(part(tree, i, 0), 0);
}

static int is_leaf(PyObject *tree)
{
    return PyTuple_GET_SIZE(PyTuple_GET_ITEM(tree, 1)) == 0;
}

static int is_read(PyObject *tree)
{
    return PyUnicode_GET_LENGTH(PyTuple_GET_ITEM(tree, 0)) != 0;
}

static int is_compared(PyObject *tree)
{
    PyObject *read = PyTuple_GET_ITEM(tree, 0);
    return PyUnicode_FindChar(read, '=', 0, PyUnicode_GET_LENGTH(read), 1) >= 0;
}

static int is_tree(PyObject *tree)
{
    PyObject *read, *branches, *key, *inner;
    int letter;
    if (!PyTuple_CheckExact(tree) || !PyArg_ParseTuple(tree, "UO!", &read, &PyTuple_Type, &branches))
        return 0;
    FOR_EACH_BRANCH(i, tree)
        if (!PyTuple_CheckExact(PyTuple_GET_ITEM(branches, i))
            || !PyArg_ParseTuple(PyTuple_GET_ITEM(branches, i), "COO", &letter, &key, &inner) || !is_tree(inner))
            return 0;
    return 1;
}
