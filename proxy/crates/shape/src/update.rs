//! Turns updates into parts of a shape. An update is a replacement, a set of modifiers or a
//! pipeline.

use super::bson::{Document, Field, Value};
use super::filter::regex_form;
use super::form::{Form, Node, word};
use super::walk::Walk;

impl<F: Form> Walk<'_, F> {
    /// Turns the update of a statement into a part of the shape; `None` if the value is an empty
    /// pipeline or cannot be an update. `depth` is the nesting level of the value in the command.
    pub(super) fn update(&mut self, value: &Value<'_>, depth: u32) -> Option<Node<F>> {
        match *value {
            Value::Array(pipeline) => pipeline
                .first()
                .is_some()
                .then(|| self.pipeline(pipeline, depth)),
            Value::Document(document) if is_replacement(document) => Some(Node::word(word!("{?}"))),
            Value::Document(modifiers) => Some(self.set_of(
                modifiers,
                Self::operator_or_path,
                |walk, modifier| walk.modifier(modifier, depth + 1),
            )),
            _ => None,
        }
    }

    fn modifier(&mut self, modifier: &Field<'_>, depth: u32) -> Node<F> {
        let Value::Document(changes) = modifier.value else {
            return Node::value();
        };
        self.set_of(changes, Self::path, |walk, change| {
            match (modifier.name, &change.value) {
                (b"$push" | b"$addToSet", &Value::Document(document))
                    if document.is_operator_document() =>
                {
                    walk.names_of(document)
                }
                (b"$pull", &Value::Regex(regex)) => regex_form(regex),
                (b"$pull", &Value::Document(document)) if document.is_operator_document() => {
                    walk.operators(document, depth + 1)
                }
                (b"$pull", &Value::Document(filter)) => walk.filter(filter, depth + 1),
                _ => Node::value(),
            }
        })
        .with_coarse(word!("{...}"))
    }
}

pub(super) fn is_replacement(document: Document<'_>) -> bool {
    document
        .first()
        .is_none_or(|first| first.name.first() != Some(&b'$'))
}
