//! Ranges of an array, borrowed or copied.

use crate::Error;
use crate::device::HostWindow;
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
    pub(super) fn of_copies(elements: Cow<'a, [E]>, ranges: &[Range<usize>]) -> Self {
        let mut end = 0;
        let own = |range: &Range<usize>| {
            let start = end;
            end += range.len();
            start..end
        };
        Self { ranges: ranges.iter().map(own).collect(), elements }
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

/// A sample that may still be on its way from a GPU.
#[derive(Debug)]
pub(crate) struct Arrival<'a, E: Clone>(Copies<'a, E>);

#[derive(Debug)]
enum Copies<'a, E: Clone> {
    Here(Sample<'a, E>),
    /// The GPU writes the elements to the window.
    InWindow {
        window: &'a HostWindow,
        elements: *const E,
        ranges: Vec<Range<usize>>,
    },
}

impl<'a, E: Clone> Arrival<'a, E> {
    /// A sample that is there.
    pub(super) fn here(sample: Sample<'a, E>) -> Self {
        Self(Copies::Here(sample))
    }

    /// Ranges whose elements kernels write to a window, one after the other.
    ///
    /// # Safety
    ///
    /// The elements are those of an array of the window, and are written before the last mark of
    /// the window.
    pub(super) unsafe fn in_window(
        window: &'a HostWindow,
        elements: *const E,
        ranges: Vec<Range<usize>>,
    ) -> Self {
        Self(Copies::InWindow { window, elements, ranges })
    }

    /// Waits for the sample.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn wait(self) -> Result<Sample<'a, E>, Error> {
        match self.0 {
            Copies::Here(sample) => Ok(sample),
            Copies::InWindow { window, elements, ranges } => {
                let len = ranges.iter().map(Range::len).sum();
                window.wait(len * size_of::<E>())?;
                // SAFETY: an array of the window, which is written and lives as long as that.
                let elements = unsafe { std::slice::from_raw_parts(elements, len) };
                Ok(Sample::of_copies(Cow::Borrowed(elements), &ranges))
            }
        }
    }
}
