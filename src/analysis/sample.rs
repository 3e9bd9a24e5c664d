//! Ranges of an array, borrowed or copied.

use std::borrow::Cow;
use std::ops::Range;

/// Ranges of an array.
#[derive(Debug)]
pub(crate) struct Sample<'a, E: Clone> {
    elements: Cow<'a, [E]>,
    /// The ranges, in `elements`.
    ranges: Vec<Range<usize>>,
}

impl<'a, E: Clone> Sample<'a, E> {
    /// Ranges of an array in host memory.
    pub(super) fn of(elements: &'a [E], ranges: Vec<Range<usize>>) -> Self {
        Self { elements: elements.into(), ranges }
    }

    /// Copies of ranges, which follow one another in `elements`.
    pub(super) fn of_copies(elements: Vec<E>, ranges: &[Range<usize>]) -> Self {
        let mut end = 0;
        let own = |range: &Range<usize>| {
            let start = end;
            end += range.len();
            start..end
        };
        Self { ranges: ranges.iter().map(own).collect(), elements: Cow::Owned(elements) }
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Elements of range number `i`.
    pub(crate) fn get(&self, i: usize) -> &[E] {
        &self.elements[self.ranges[i].clone()]
    }
}
