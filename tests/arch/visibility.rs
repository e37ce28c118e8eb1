//! Items are `pub` only if another package needs them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use syn::{
    Ident, ImplItem, ItemConst, ItemEnum, ItemFn, ItemImpl, ItemMacro, ItemMod, ItemStatic,
    ItemStruct, ItemTrait, ItemType, Type, Visibility,
    visit::{self, Visit},
};

use crate::sources::{crates, identifiers, root, sources, without_comments};

/// The items of a package that are `pub`. Unit tests are ignored.
#[derive(Debug, Default)]
struct PublicItems {
    functions_and_constants: BTreeSet<String>,
    /// The associated functions that take no `self`, each with the name of its type: `A::b`.
    associated: BTreeSet<String>,
    /// The methods (functions that take `self`) and the associated constants. Other code names them
    /// only after `.` or `::`.
    members: BTreeSet<String>,
    types: BTreeSet<String>,
    /// The identifiers in public signatures and fields. The compiler requires that a type which
    /// occurs there is `pub`. The occurrences of a type in its own declaration and members are
    /// ignored.
    in_signatures: BTreeSet<String>,
}

impl PublicItems {
    /// Adds the type `name`, and the identifiers in its declaration.
    fn add_type(&mut self, name: &Ident, declaration: impl FnOnce(&mut Identifiers)) {
        self.types.insert(name.to_string());
        self.add_identifiers(&name.to_string(), declaration);
    }

    /// Adds all identifiers that `visit` finds, but not the identifier `except`.
    fn add_identifiers(&mut self, except: &str, visit: impl FnOnce(&mut Identifiers)) {
        let mut found = Identifiers::default();
        visit(&mut found);
        found.0.remove(except);
        self.in_signatures.append(&mut found.0);
    }
}

impl<'ast> Visit<'ast> for PublicItems {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !module.attrs.iter().any(is_for_tests) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if is_public(&function.vis) {
            let name = function.sig.ident.to_string();
            self.add_identifiers(&name, |found| found.visit_signature(&function.sig));
            self.functions_and_constants.insert(name);
        }
    }

    fn visit_item_const(&mut self, constant: &'ast ItemConst) {
        if is_public(&constant.vis) {
            let name = constant.ident.to_string();
            self.add_identifiers(&name, |found| found.visit_type(&constant.ty));
            self.functions_and_constants.insert(name);
        }
    }

    fn visit_item_static(&mut self, variable: &'ast ItemStatic) {
        if is_public(&variable.vis) {
            let name = variable.ident.to_string();
            self.add_identifiers(&name, |found| found.visit_type(&variable.ty));
            self.functions_and_constants.insert(name);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if is_public(&item.vis) {
            self.add_type(&item.ident, |found| {
                found.visit_generics(&item.generics);
                for field in item.fields.iter().filter(|field| is_public(&field.vis)) {
                    found.visit_type(&field.ty);
                }
            });
        }
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        if is_public(&item.vis) {
            self.add_type(&item.ident, |found| found.visit_item_enum(item));
        }
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        if is_public(&item.vis) {
            self.add_type(&item.ident, |found| found.visit_item_trait(item));
        }
    }

    fn visit_item_type(&mut self, item: &'ast ItemType) {
        if is_public(&item.vis) {
            self.add_type(&item.ident, |found| found.visit_type(&item.ty));
        }
    }

    /// A macro can declare public fields and functions, so all identifiers in it count.
    fn visit_item_macro(&mut self, item: &'ast ItemMacro) {
        let tokens = item.mac.tokens.to_string();
        let found = identifiers(&tokens).into_iter().map(str::to_owned);
        self.in_signatures.extend(found);
    }

    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        let mut implementor = Identifiers::default();
        if let Type::Path(path) = block.self_ty.as_ref() {
            let last = path.path.segments.last().unwrap();
            implementor.visit_ident(&last.ident);
        }
        let own = implementor.0.pop_first().unwrap_or_default();
        if block.trait_.is_some() {
            self.add_identifiers(&own, |found| found.visit_generics(&block.generics));
        }
        for item in &block.items {
            match item {
                // The types of a trait's implementation must be as visible as the trait.
                ImplItem::Type(item) => {
                    self.add_identifiers(&own, |found| found.visit_type(&item.ty));
                }
                ImplItem::Fn(item) if is_public(&item.vis) => {
                    let name = item.sig.ident.to_string();
                    match item.sig.receiver() {
                        Some(_) => self.members.insert(name),
                        None => self.associated.insert(format!("{own}::{name}")),
                    };
                    self.add_identifiers(&own, |found| found.visit_signature(&item.sig));
                }
                ImplItem::Const(item) if is_public(&item.vis) => {
                    self.members.insert(item.ident.to_string());
                    self.add_identifiers(&own, |found| found.visit_type(&item.ty));
                }
                _ => {}
            }
        }
    }
}

/// All identifiers in a part of the syntax tree.
#[derive(Default)]
struct Identifiers(BTreeSet<String>);

impl<'ast> Visit<'ast> for Identifiers {
    fn visit_ident(&mut self, identifier: &'ast Ident) {
        self.0.insert(identifier.to_string());
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// True for the attribute `#[cfg(test)]`.
fn is_for_tests(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute
            .parse_args::<syn::Path>()
            .is_ok_and(|condition| condition.is_ident("test"))
}

#[test]
fn public_items_of_a_source_file_are_found() {
    let source = "#[cfg(test)] mod x;\n\
                  pub fn a(_: A) -> impl B { C }\n\
                  impl D { pub const fn b(&self) -> D {} fn c(_: E) {} pub const F: G = 1; }\n\
                  impl x::D<u8> { pub fn h(_: &Self) -> Self {} }\n\
                  pub(crate) fn d() {}\n\
                  pub const H: u8 = 1;\n\
                  pub struct I<T: J> { pub k: K<I>, l: L }\n\
                  pub(crate) enum M { N(O) }\n\
                  pub enum P { Q(R) }\n\
                  generate! { pub s: S }\n\
                  impl<T: U> V for W<T> { type X = Y; fn z() {} }\n\
                  #[cfg(test)] mod tests { pub fn g() {} }\n";
    let mut items = PublicItems::default();
    items.visit_file(&syn::parse_file(source).unwrap());
    let join = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<String>();
    assert_eq!(join(&items.functions_and_constants), "Ha");
    assert_eq!(join(&items.associated), "D::h");
    assert_eq!(join(&items.members), "Fb");
    assert_eq!(join(&items.types), "IP");
    for name in ["A", "B", "G", "J", "K", "R", "S", "U", "Y"] {
        assert!(items.in_signatures.contains(name), "{name}: {items:?}");
    }
    for name in ["C", "D", "E", "I", "L", "O", "P"] {
        assert!(!items.in_signatures.contains(name), "{name}: {items:?}");
    }
}

/// The sources of each package: the proxy, its crates, the configuration, and the packages and
/// targets that use them.
fn packages() -> BTreeMap<String, Vec<PathBuf>> {
    let mut folders: BTreeMap<String, PathBuf> = crates();
    for (name, folder) in crates() {
        for target in ["tests", "examples"] {
            let folder = folder.with_file_name(target);
            if folder.is_dir() {
                folders.insert(format!("{target} of {name}"), folder);
            }
        }
    }
    for (name, folder) in [
        ("seawall", "proxy/src"),
        ("config", "config/src"),
        ("tests of config", "config/tests"),
        ("tests", "tests"),
        ("benches", "benches"),
        ("fuzz", "proxy/fuzz"),
    ] {
        folders.insert(name.to_owned(), root().join(folder));
    }
    let found = folders.into_iter().map(|(name, folder)| {
        let mut files = Vec::new();
        sources(&folder, &mut files);
        (name, files)
    });
    found.collect()
}

/// True if other packages cannot use the items of this package.
fn is_only_a_user(package: &str) -> bool {
    ["tests", "benches", "fuzz"].contains(&package) || package.contains(" of ")
}

/// The words of Rust code that follow `.` or `::`.
fn members_in(code: &str) -> BTreeSet<&str> {
    let pieces = code.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_');
    let mut members = BTreeSet::new();
    let mut before = "";
    for piece in pieces {
        let word = piece.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '_');
        if !word.is_empty() && (before.ends_with('.') || before.ends_with(':')) {
            members.insert(word);
        }
        before = piece;
    }
    members
}

#[test]
fn members_are_found_after_dots_and_colons() {
    let found: Vec<_> = members_in("a.b(c).d::<E>; F::g, h: I")
        .into_iter()
        .collect();
    assert_eq!(found, ["b", "d", "g"]);
}

/// The pairs of adjacent names in the paths of Rust code, without type arguments. For example,
/// `x::A::<C>::b()` contains `x::A` and `A::b`. Uses of associated functions are among these pairs.
fn associated_in(code: &str) -> BTreeSet<String> {
    let is_outside = |c: char| !c.is_alphanumeric() && c != '_';
    let is_list_of_types = |part: &&str| part.starts_with('<') && part.ends_with('>');
    let parts = code.split("::").filter(|part| !is_list_of_types(part));
    let parts: Vec<_> = parts.collect();
    let pairs = parts.windows(2).map(|pair| {
        let before = pair[0].rsplit(is_outside).next().unwrap();
        let after = pair[1].split(is_outside).next().unwrap();
        format!("{before}::{after}")
    });
    pairs.collect()
}

#[test]
fn functions_of_types_are_found_with_the_names_of_their_types() {
    let found = associated_in("a::B::c(d); E::<F>::g().h(I::j)");
    let found: Vec<_> = found.iter().map(String::as_str).collect();
    assert_eq!(found, ["B::c", "E::g", "I::j", "a::B"]);
}

/// The identifiers that occur in the code of a package.
struct Named<'a> {
    words: BTreeSet<&'a str>,
    members: BTreeSet<&'a str>,
    associated: BTreeSet<String>,
}

impl<'a> Named<'a> {
    fn in_code(code: &'a str) -> Self {
        Self {
            words: identifiers(code),
            members: members_in(code),
            associated: associated_in(code),
        }
    }

    /// True if the package `name`, which has this code, can use items of `package`: it is a target
    /// of `package`, or it names the crate of `package`. The tests and benches do not have to name
    /// the crate, because other crates can return its items.
    fn can_use(&self, name: &str, package: &str) -> bool {
        let library = match package {
            "seawall" => package.to_owned(),
            _ => format!("seawall_{package}"),
        };
        is_only_a_user(name) || name == "main.rs" || self.words.contains(library.as_str())
    }
}

/// The compiler reports unused items only if they are not `pub`, so this test finds `pub` items
/// that no other package names. A type may also be `pub` because a public signature contains it.
#[test]
fn public_items_are_used_by_another_package() {
    let read = |file: &PathBuf| fs::read_to_string(file).unwrap();
    let texts: BTreeMap<String, Vec<String>> = packages()
        .into_iter()
        .map(|(name, files)| (name, files.iter().map(read).collect()))
        .collect();
    let code_of = |texts: &Vec<String>| -> String {
        texts.iter().map(|text| without_comments(text)).collect()
    };
    let mut codes: BTreeMap<&str, String> = texts
        .iter()
        .map(|(name, texts)| (name.as_str(), code_of(texts)))
        .collect();
    // `main.rs` is a separate crate, so an item of the library that only `main.rs` uses must be
    // `pub`. Such an item counts as used.
    let main = read(&root().join("proxy/src/main.rs"));
    codes.insert("main.rs", without_comments(&main));
    let named: BTreeMap<&str, Named<'_>> = codes
        .iter()
        .map(|(name, code)| (*name, Named::in_code(code)))
        .collect();
    let (mut unused, mut total) = (BTreeSet::new(), 0);
    for (package, texts) in texts.iter().filter(|(name, _)| !is_only_a_user(name)) {
        let others: Vec<_> = named
            .iter()
            .filter(|(name, named)| *name != package && named.can_use(name, package))
            .map(|(_, named)| named)
            .collect();
        let mut items = PublicItems::default();
        for text in texts {
            items.visit_file(&syn::parse_file(text).unwrap());
        }
        let is_named = |name: &String| others.iter().any(|of| of.words.contains(name.as_str()));
        let is_called = |name: &String| others.iter().any(|of| of.members.contains(name.as_str()));
        let is_of_type = |name: &String| others.iter().any(|of| of.associated.contains(name));
        let functions = &items.functions_and_constants;
        let functions = functions.iter().filter(|name| !is_named(name));
        let associated = items.associated.iter().filter(|name| !is_of_type(name));
        let members = items.members.iter().filter(|name| !is_called(name));
        let types = items.types.difference(&items.in_signatures);
        let types = types.filter(|name| !is_named(name));
        let all = functions.chain(associated).chain(members).chain(types);
        unused.extend(all.map(|name| format!("{package}: {name}")));
        total += items.functions_and_constants.len() + items.types.len();
        total += items.associated.len() + items.members.len();
    }
    assert!(total > 800, "expected more than 800 items, got {total}");
    assert!(
        unused.is_empty(),
        "not used by another package: {unused:#?}"
    );
}
