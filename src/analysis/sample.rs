//! Ranges of an array, borrowed or copied.

use crate::Error;
use crate::device::HostArrays;
use std::borrow::Cow;
use std::ops::Range;

/// Ranges of an array.
#[derive(Debug)]
pub(crate) struct Sample<'a, E: Clone> {
    elements: Cow<'a, [E]>,
    /// The ranges, in `elements`.
    ranges: Vec<Range<usize>>,
}

impl<E: Clone> Sample<'_, E> {
    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Elements of range number `i`.
    pub(crate) fn get(&self, i: usize) -> &[E] {
        &self.elements[self.ranges[i].clone()]
    }
}

/// Elements that a GPU may still have to write.
#[derive(Debug)]
pub(super) enum PendingElements<'a, E: Clone> {
    /// They are there.
    Read(Cow<'a, [E]>),
    /// Kernels before the last mark of `arrays` write them there.
    Written { arrays: &'a HostArrays, elements: *const E, len: usize },
}

impl<'a, E: Clone> PendingElements<'a, E> {
    /// Waits for the elements.
    ///
    /// # Safety
    ///
    /// An array of `arrays` has as many elements, and the kernels write all of them.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(super) unsafe fn wait(self) -> Result<Cow<'a, [E]>, Error> {
        match self {
            Self::Read(elements) => Ok(elements),
            Self::Written { arrays, elements, len } => {
                arrays.wait(len * size_of::<E>())?;
                // SAFETY: the caller's promise; the array lives as long as `arrays`.
                Ok(unsafe { std::slice::from_raw_parts(elements, len) }.into())
            }
        }
    }
}

/// A sample whose elements a GPU may still have to copy.
#[derive(Debug)]
pub(crate) struct PendingSample<'a, E: Clone> {
    elements: PendingElements<'a, E>,
    /// The ranges, in the elements.
    ranges: Vec<Range<usize>>,
}

impl<'a, E: Clone> PendingSample<'a, E> {
    /// Ranges of an array in host memory.
    pub(super) fn of(elements: &'a [E], ranges: Vec<Range<usize>>) -> Self {
        Self { elements: PendingElements::Read(elements.into()), ranges }
    }

    /// Copies of ranges, all of which are in `elements` after a wait, one after the other.
    pub(super) fn of_copies(elements: PendingElements<'a, E>, ranges: &[Range<usize>]) -> Self {
        let mut end = 0;
        let own = |range: &Range<usize>| {
            let start = end;
            end += range.len();
            start..end
        };
        Self { elements, ranges: ranges.iter().map(own).collect() }
    }

    /// Waits for the sample.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn wait(self) -> Result<Sample<'a, E>, Error> {
        // SAFETY: a kernel copies all elements.
        Ok(Sample { elements: unsafe { self.elements.wait()? }, ranges: self.ranges })
    }
}
