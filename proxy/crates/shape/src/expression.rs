//! Turns aggregation expressions and projections into parts of a shape. A projection can contain
//! expressions.

use super::bson::{Array, Document, Field, Value};
use super::form::{Bracket, Form, Node, Sequence as Ordered, word};
use super::pipeline::holds_values;
use super::walk::{MAX_DEPTH, Walk, meta, plain_value};

impl<F: Form> Walk<'_, F> {
    /// Turns an expression into a part of the shape. `depth` is its nesting level in the command.
    pub(super) fn expression(&mut self, value: &Value<'_>, depth: u32) -> Node<F> {
        if depth > MAX_DEPTH {
            return Node::cut();
        }
        match *value {
            Value::String(string) => self.expression_string(string),
            Value::Document(document) => self.expression_document(document, depth),
            Value::Array(array) => self.expression_array(array, depth),
            _ => Node::value(),
        }
    }

    fn expression_document(&mut self, document: Document<'_>, depth: u32) -> Node<F> {
        match document.first().map(|first| first.name) {
            Some(b"$literal" | b"$const") => Node::value(),
            Some([b'$', ..]) => {
                self.set_of(
                    document,
                    Self::operator_or_path,
                    |walk, field| match field.name {
                        b"$function" | b"$accumulator" => Node::value(),
                        b"$meta" => Node::same(meta(&field.value)),
                        _ => walk.operand(field, depth + 1),
                    },
                )
            }
            _ => self.set_of(document, Self::path, |walk, field| {
                match (field.name, &field.value) {
                    (b"sortBy", &Value::Document(keys)) => walk.keys(keys),
                    _ => walk.operand(field, depth + 1),
                }
            }),
        }
    }

    /// The part of the shape for an argument in an expression, or for the argument of a stage that
    /// has no rule of its own. Such a stage can contain pipelines, as `$rankFusion` does.
    pub(super) fn operand(&mut self, field: &Field<'_>, depth: u32) -> Node<F> {
        let outer = self.hides_strings;
        self.hides_strings = match field.name {
            b"$expr" => false,
            name => outer || holds_values(name),
        };
        let node = self.expression(&field.value, depth);
        self.hides_strings = outer;
        node
    }

    /// The part of the shape for a string. The string is a field path or a variable if it begins
    /// with `$`, otherwise a constant.
    fn expression_string(&self, string: &[u8]) -> Node<F> {
        match string {
            _ if self.hides_strings => Node::value(),
            [b'$', b'$', _, ..] => Node::same(self.expression_path(string, 2)),
            [b'$', _, ..] => Node::same(self.expression_path(string, 1)),
            _ => Node::value(),
        }
    }

    /// The part of the shape for an operator's array of arguments. An argument is dropped if it is
    /// printed like the argument before it. So lists of constants with different lengths have the
    /// same shape.
    fn expression_array(&mut self, array: Array<'_>, depth: u32) -> Node<F> {
        if array.is_empty() {
            return plain_value(&Value::Array(array));
        }
        let mut items = Ordered::new();
        let mut elements = array.elements();
        while let Some(element) = &self.visit(&mut elements) {
            let item = self.expression(&element.value, depth + 1);
            items.item_unless_repeated(&item);
        }
        items.close(Bracket::List)
    }

    /// Turns a projection into a part of the shape. `depth` is its nesting level in the command.
    pub(super) fn projection(&mut self, projection: Document<'_>, depth: u32) -> Node<F> {
        if depth > MAX_DEPTH {
            return Node::cut();
        }
        self.set_of(projection, Self::path, |walk, field| {
            walk.projected(&field.value, depth + 1)
        })
    }

    fn projected(&mut self, value: &Value<'_>, depth: u32) -> Node<F> {
        let is_flag = matches!(value, Value::True | Value::False) || value.number().is_some();
        if is_flag {
            return Node::word(if value.truth() {
                word!("1")
            } else {
                word!("0")
            });
        }
        let &Value::Document(document) = value else {
            return self.expression(value, depth);
        };
        let Some(first) = document.first() else {
            return self.expression(value, depth);
        };
        if depth > MAX_DEPTH {
            return Node::cut();
        }
        let argument = match first.name {
            b"$elemMatch" => self.filter_or_value(&first.value, depth + 1),
            b"$slice" => match first.value {
                Value::Array(_) => self.expression(&first.value, depth + 1),
                _ => Node::value(),
            },
            [b'$', ..] => return self.expression_document(document, depth),
            _ => return self.projection(document, depth),
        };
        let mut operators = Ordered::new();
        operators.entry(&F::leaf(first.name), &argument);
        operators.close(Bracket::Document)
    }
}
