//! A form is one part of a shape. A walk over a command builds forms as hashes or as text.
//!
//! The walk is written once, generic over the trait [`Form`], so hash and text always agree. The
//! walk builds two versions of each form as a [`Node`]: one for the fine and one for the coarse
//! shape (see [`crate`]). The coarse version of a set or sequence is stored separately only after a
//! member was added whose two versions differ.

pub(super) use super::hash::Bracket;
use super::hash::Digest;
use super::name::Name;

/// Maximum number of different members in the form of a set. It limits the stack that a set uses,
/// and the time to compare members.
pub(super) const MAX_SET_ENTRIES: usize = 64;

/// One part of a shape: a leaf, an entry, a document or a list.
pub(super) trait Form: Clone + Default + PartialEq {
    /// Storage for the members of a set.
    type MemberStorage: MemberStorage<Self>;
    /// A set to which members are being added.
    type Unordered: Default;
    /// A sequence to which items are being added.
    type Ordered: Clone + Default;

    /// The form of a constant text in the source code.
    fn word(word: Word) -> Self;
    /// The form of a text that is printed unchanged. The text must not contain any part of a value.
    fn leaf(text: &[u8]) -> Self;
    /// The form of a name, quoted if necessary.
    fn name(name: Name<'_>) -> Self;
    /// The form of an entry: `key:value`.
    fn entry(key: &Self, value: &Self) -> Self;
    /// Adds a member to a set. The member must differ from all earlier members.
    fn add(entries: &mut Self::Unordered, entry: &Self);
    /// The form of a complete set, with its brackets.
    fn close_set(entries: Self::Unordered, bracket: Bracket) -> Self;
    /// Appends an item to a sequence.
    fn append(items: &mut Self::Ordered, item: &Self);
    /// The form of a complete sequence, with its brackets.
    fn close_sequence(items: &Self::Ordered, bracket: Bracket) -> Self;
}

/// Storage for the members of a set, at most [`MAX_SET_ENTRIES`]. The caller counts the members.
pub(super) trait MemberStorage<F>: Clone + Default {
    /// The first `count` members.
    fn members(&self, count: usize) -> &[F];
    /// Stores a member after the first `count` members.
    fn put(&mut self, count: usize, member: F);
}

/// A constant text and its digest, both computed at compile time. See [`word`].
#[derive(Copy, Clone, Debug)]
pub(super) struct Word {
    pub(super) text: &'static str,
    pub(super) digest: Digest,
}

impl Word {
    pub(super) const fn new(text: &'static str) -> Self {
        Self {
            text,
            digest: Digest::of_text(text.as_bytes()),
        }
    }
}

/// The [`Word`] of a literal, hashed at compile time.
macro_rules! word {
    ($text:expr) => {
        const { super::form::Word::new($text) }
    };
}
pub(super) use word;

/// A form in two versions: one for the fine and one for the coarse shape (see [`crate`]).
#[derive(Clone, Debug)]
pub(super) struct Node<F> {
    pub(super) fine: F,
    pub(super) coarse: F,
}

impl<F: Form> Node<F> {
    /// A node whose two versions are equal.
    #[inline]
    pub(super) fn same(form: F) -> Self {
        Self {
            fine: form.clone(),
            coarse: form,
        }
    }

    /// The node of a constant text.
    #[inline]
    pub(super) fn word(word: Word) -> Self {
        Self::same(F::word(word))
    }

    /// The node that replaces a value: `?`.
    #[inline]
    pub(super) fn value() -> Self {
        Self::word(word!("?"))
    }

    /// The node that replaces a part beyond a limit: `...`.
    pub(super) fn cut() -> Self {
        Self::word(word!("..."))
    }

    /// The node of a name.
    pub(super) fn name(name: Name<'_>) -> Self {
        Self::same(F::name(name))
    }

    /// This node, with a constant text as its coarse version.
    pub(super) fn with_coarse(self, word: Word) -> Self {
        Self {
            fine: self.fine,
            coarse: F::word(word),
        }
    }

    /// The node of an entry: `key:value`.
    #[inline]
    pub(super) fn entry(key: &F, value: &Self) -> Self {
        let fine = F::entry(key, &value.fine);
        if value.is_same() {
            return Self::same(fine);
        }
        Self {
            fine,
            coarse: F::entry(key, &value.coarse),
        }
    }

    #[inline]
    fn is_same(&self) -> bool {
        self.fine == self.coarse
    }
}

/// A set: order does not matter, and equal members count once. A set with more than `max_members`
/// members becomes the text `{...}` or `[...]`, without its members.
pub(super) struct Set<'s, F: Form> {
    members: Pair<'s, Members<F>>,
    max_members: usize,
}

impl<F: Form> Set<'_, F> {
    /// Builds a set. `fill` adds the members.
    #[inline]
    pub(super) fn of(bracket: Bracket, fill: impl FnOnce(&mut Set<'_, F>)) -> Node<F> {
        Self::with_max(MAX_SET_ENTRIES, bracket, fill)
    }

    /// Builds a set whose form is only `{...}` or `[...]` if it has more than `max_members`
    /// members. `max_members` is at most [`MAX_SET_ENTRIES`]. `fill` adds the members.
    #[inline]
    pub(super) fn with_max(
        max_members: usize,
        bracket: Bracket,
        fill: impl FnOnce(&mut Set<'_, F>),
    ) -> Node<F> {
        let (mut fine, mut coarse) = (Members::default(), None);
        let mut set = Set {
            members: Pair::new(&mut fine, &mut coarse),
            max_members,
        };
        fill(&mut set);
        set.members.close(|members| members.close(bracket))
    }

    /// Adds an entry of a document.
    #[inline]
    pub(super) fn entry(&mut self, key: &F, value: &Node<F>) {
        self.item(&Node::entry(key, value));
    }

    /// Adds an item of a list.
    #[inline]
    pub(super) fn item(&mut self, item: &Node<F>) {
        let max_members = self.max_members;
        self.members
            .each(item, |members, item| members.add(item, max_members));
    }
}

/// The different members of a set, and their number.
#[derive(Clone)]
struct Members<F: Form> {
    storage: F::MemberStorage,
    count: usize,
    has_overflowed: bool,
}

impl<F: Form> Default for Members<F> {
    #[inline]
    fn default() -> Self {
        Self {
            storage: F::MemberStorage::default(),
            count: 0,
            has_overflowed: false,
        }
    }
}

impl<F: Form> Members<F> {
    #[inline]
    fn add(&mut self, item: &F, max_members: usize) {
        if self.storage.members(self.count).contains(item) {
            return;
        }
        if self.count >= max_members {
            self.has_overflowed = true;
            return;
        }
        self.storage.put(self.count, item.clone());
        self.count += 1;
    }

    #[inline]
    fn close(&self, bracket: Bracket) -> F {
        if self.has_overflowed {
            return F::word(too_many(bracket));
        }
        let mut entries = F::Unordered::default();
        for member in self.storage.members(self.count) {
            F::add(&mut entries, member);
        }
        F::close_set(entries, bracket)
    }
}

/// A sequence: order matters.
pub(super) struct Sequence<F: Form> {
    fine: Items<F>,
    /// The coarse version; `None` while it equals the fine version.
    coarse: Option<Items<F>>,
}

impl<F: Form> Sequence<F> {
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            fine: Items {
                items: F::Ordered::default(),
                last: None,
            },
            coarse: None,
        }
    }

    /// Adds an entry of a document.
    #[inline]
    pub(super) fn entry(&mut self, key: &F, value: &Node<F>) {
        self.item(&Node::entry(key, value));
    }

    /// Adds an entry to the fine version only.
    pub(super) fn fine_entry(&mut self, key: &F, value: &Node<F>) {
        self.split();
        F::append(&mut self.fine.items, &F::entry(key, &value.fine));
    }

    /// Adds an item of a list.
    #[inline]
    pub(super) fn item(&mut self, item: &Node<F>) {
        self.each(item, |items, item| F::append(&mut items.items, item));
    }

    /// Adds an item, unless it equals the item before it.
    pub(super) fn item_unless_repeated(&mut self, item: &Node<F>) {
        self.each(item, |items, item| {
            if items.last.as_ref() != Some(item) {
                F::append(&mut items.items, item);
                items.last = Some(item.clone());
            }
        });
    }

    #[inline]
    pub(super) fn close(&self, bracket: Bracket) -> Node<F> {
        let fine = F::close_sequence(&self.fine.items, bracket);
        match &self.coarse {
            None => Node::same(fine),
            Some(coarse) => Node {
                fine,
                coarse: F::close_sequence(&coarse.items, bracket),
            },
        }
    }

    #[inline]
    fn each(&mut self, item: &Node<F>, add: impl Fn(&mut Items<F>, &F)) {
        if !item.is_same() {
            self.split();
        }
        add(&mut self.fine, &item.fine);
        if let Some(coarse) = &mut self.coarse {
            add(coarse, &item.coarse);
        }
    }

    fn split(&mut self) {
        if self.coarse.is_none() {
            self.coarse = Some(self.fine.clone());
        }
    }
}

/// The items added so far. `last` is the item that [`Sequence::item_unless_repeated`] added last,
/// if any.
#[derive(Clone)]
struct Items<F: Form> {
    items: F::Ordered,
    last: Option<F>,
}

/// A filter: a set of conjuncts (conditions that must all hold). All conjuncts of one path together
/// are one entry of the filter.
pub(super) struct Conjuncts<'s, F: Form> {
    conjuncts: Pair<'s, ConjunctList<F>>,
}

/// The role of a conjunct. The role decides how the conjunct is printed if it is alone on its path,
/// and how it is printed if the path has other conjuncts.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub(super) enum Role {
    /// A top-level operator, without a path.
    #[default]
    Top,
    /// `$eq`. Its name is printed only if the path has other conjuncts.
    Equal,
    /// `$regex`. Its name is printed only if the path has other conjuncts.
    Regex,
    /// Any other operator. Its name is always printed.
    Operator,
}

impl<F: Form> Conjuncts<'_, F> {
    /// Builds a filter. `fill` adds the conjuncts.
    #[inline]
    pub(super) fn of(fill: impl FnOnce(&mut Conjuncts<'_, F>)) -> Node<F> {
        let (mut fine, mut coarse) = (ConjunctList::default(), None);
        let mut conjuncts = Conjuncts {
            conjuncts: Pair::new(&mut fine, &mut coarse),
        };
        fill(&mut conjuncts);
        conjuncts.conjuncts.close(ConjunctList::close)
    }

    /// Adds a conjunct without a path.
    pub(super) fn top(&mut self, operator: &F, argument: &Node<F>) {
        self.add(Role::Top, &F::default(), &Node::entry(operator, argument));
    }

    /// Adds a conjunct on a path. `form` is the argument of `$eq` or `$regex`. For other operators
    /// it is the entry `operator:argument`.
    #[inline]
    pub(super) fn add(&mut self, role: Role, path: &F, form: &Node<F>) {
        self.conjuncts
            .each(form, |conjuncts, form| conjuncts.add(role, path, form));
    }
}

/// The different conjuncts of a filter. Paths, forms and marks are in separate arrays, so that a
/// search for a path is fast.
#[derive(Clone)]
struct ConjunctList<F: Form> {
    paths: F::MemberStorage,
    forms: F::MemberStorage,
    marks: [Mark; MAX_SET_ENTRIES],
    count: usize,
    has_overflowed: bool,
}

/// The properties of one conjunct in a [`ConjunctList`].
#[derive(Copy, Clone, Default)]
struct Mark {
    role: Role,
    /// True if an earlier conjunct has the same path. The entry of the first conjunct of the path
    /// then contains this conjunct too.
    is_later: bool,
    /// True if a later conjunct has the same path.
    has_later: bool,
}

impl<F: Form> Default for ConjunctList<F> {
    #[inline]
    fn default() -> Self {
        Self {
            paths: F::MemberStorage::default(),
            forms: F::MemberStorage::default(),
            marks: [Mark::default(); MAX_SET_ENTRIES],
            count: 0,
            has_overflowed: false,
        }
    }
}

impl<F: Form> ConjunctList<F> {
    #[inline]
    fn add(&mut self, role: Role, path: &F, form: &F) {
        let is_known_path = role == Role::Top || self.paths.members(self.count).contains(path);
        if is_known_path
            && self
                .iter()
                .any(|(p, f, mark)| mark.role == role && f == form && p == path)
        {
            return;
        }
        let is_later = is_known_path && role != Role::Top && self.mark_first_of(path);
        let Some(mark) = self.marks.get_mut(self.count) else {
            self.has_overflowed = true;
            return;
        };
        *mark = Mark {
            role,
            is_later,
            has_later: false,
        };
        self.paths.put(self.count, path.clone());
        self.forms.put(self.count, form.clone());
        self.count += 1;
    }

    /// Sets `has_later` for the first conjunct of a path. Returns false if the path has no conjunct
    /// yet.
    fn mark_first_of(&mut self, path: &F) -> bool {
        let mut marks = self.marks.iter_mut().zip(self.paths.members(self.count));
        let first = marks.find(|(mark, other)| mark.role != Role::Top && *other == path);
        if let Some((first, _)) = first {
            first.has_later = true;
            return true;
        }
        false
    }

    fn close(&self) -> F {
        if self.has_overflowed {
            return F::word(too_many(Bracket::Document));
        }
        let mut entries = F::Unordered::default();
        for (path, form, mark) in self.iter() {
            match mark.role {
                _ if mark.is_later => {}
                Role::Top => F::add(&mut entries, form),
                Role::Equal | Role::Regex if !mark.has_later => {
                    F::add(&mut entries, &F::entry(path, form));
                }
                Role::Equal | Role::Regex | Role::Operator => {
                    let mut operators = F::Unordered::default();
                    if mark.has_later {
                        self.add_all_of(path, &mut operators);
                    } else {
                        F::add(&mut operators, form);
                    }
                    let operators = F::close_set(operators, Bracket::Document);
                    F::add(&mut entries, &F::entry(path, &operators));
                }
            }
        }
        F::close_set(entries, Bracket::Document)
    }

    /// Adds the entry `operator:argument` of each conjunct of a path.
    fn add_all_of(&self, path: &F, operators: &mut F::Unordered) {
        for (_, form, mark) in self.iter().filter(|(other, ..)| *other == path) {
            match mark.role {
                Role::Top => {}
                Role::Equal => F::add(operators, &F::entry(&F::word(word!("$eq")), form)),
                Role::Regex => F::add(operators, &F::entry(&F::word(word!("$regex")), form)),
                Role::Operator => F::add(operators, form),
            }
        }
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = (&F, &F, &Mark)> {
        let (paths, forms) = (
            self.paths.members(self.count),
            self.forms.members(self.count),
        );
        paths
            .iter()
            .zip(forms)
            .zip(&self.marks)
            .map(|((path, form), mark)| (path, form, mark))
    }
}

/// The fine and the coarse version of a set or filter while members are added. The coarse version
/// is `None` while it equals the fine version. If the two versions of a member differ for the first
/// time, the coarse version begins as a copy of the fine version. Both versions are borrowed,
/// because moving them would copy large arrays.
struct Pair<'s, C> {
    fine: &'s mut C,
    coarse: &'s mut Option<C>,
}

impl<'s, C: Clone> Pair<'s, C> {
    #[inline]
    fn new(fine: &'s mut C, coarse: &'s mut Option<C>) -> Self {
        Self { fine, coarse }
    }

    #[inline]
    fn each<F: Form>(&mut self, node: &Node<F>, add: impl Fn(&mut C, &F)) {
        if !node.is_same() && self.coarse.is_none() {
            *self.coarse = Some(self.fine.clone());
        }
        add(self.fine, &node.fine);
        if let Some(coarse) = self.coarse {
            add(coarse, &node.coarse);
        }
    }

    #[inline]
    fn close<F: Form>(&self, close: impl Fn(&C) -> F) -> Node<F> {
        let fine = close(self.fine);
        match &*self.coarse {
            None => Node::same(fine),
            Some(coarse) => Node {
                fine,
                coarse: close(coarse),
            },
        }
    }
}

fn too_many(bracket: Bracket) -> Word {
    match bracket {
        Bracket::Document => word!("{...}"),
        Bracket::List => word!("[...]"),
    }
}
