//! Equal chunks of work for the blocks of a GPU.

use rayon::prelude::*;

/// How chunks are worked on: the kernel, and the size of its blocks.
#[derive(Debug)]
pub(super) struct Variant {
    /// What the kernel is called after `csr_`.
    pub(super) kernel: &'static str,
    /// Entries and row ends together that a block has room for.
    pub(super) capacity: u64,
    /// Threads of a block.
    pub(super) threads: u32,
}

/// What there is to choose from; `kernels/csr.cu` has an entry point for each.
const VARIANTS: [Variant; 8] = [
    Variant { kernel: "segments2048", capacity: 2048, threads: 256 },
    Variant { kernel: "segments1024", capacity: 1024, threads: 128 },
    Variant { kernel: "runs2048", capacity: 2048, threads: 256 },
    Variant { kernel: "runs1024", capacity: 1024, threads: 128 },
    Variant { kernel: "wide2048", capacity: 2048, threads: 256 },
    Variant { kernel: "wide1024", capacity: 1024, threads: 128 },
    Variant { kernel: "runs1024of4", capacity: 1024, threads: 256 },
    Variant { kernel: "wide1024of4", capacity: 1024, threads: 256 },
];

/// The one that is used where nothing else is asked for.
const USUAL: usize = 4;

/// Names a variant, for measurements; with this much added, a second launch puts cut rows together.
const VARIABLE: &str = "SPARSEOP_CSR_VARIANT";
const SECOND_LAUNCH: usize = 10;

/// The variant, and whether cut rows are put together in a second launch.
pub(super) fn variant() -> (&'static Variant, bool) {
    static ASKED: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let asked = *ASKED
        .get_or_init(|| std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(USUAL));
    let variant = VARIANTS.get(asked % SECOND_LAUNCH).unwrap_or(&VARIANTS[USUAL]);
    (variant, asked >= SECOND_LAUNCH)
}

impl Variant {
    /// Entries and row ends together between two cuts. What is left of the capacity is for cuts that are moved back, and for loads of four
    /// entries that begin up to three early.
    const fn spacing(&self) -> u64 {
        self.capacity - self.capacity / 16
    }

    /// A cut that has at most so many entries of its row before it is moved back to where the row begins.
    const fn reach(&self) -> u64 {
        self.capacity / 16 - 4
    }

    /// Chunks of a matrix.
    pub(super) const fn count(&self, nrows: u64, nnz: u64) -> u64 {
        (nrows + nnz).div_ceil(self.spacing())
    }

    /// Bytes of the table of those chunks.
    pub(super) const fn bytes(&self, nrows: u64, nnz: u64) -> u64 {
        (self.count(nrows, nnz) + 1) * size_of::<Chunk>() as u64
    }
}

/// Where a chunk begins: with the entries of row `row` from number `chunk · spacing - row - moved` of all entries on. `Chunk` in `kernels/csr.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(16))]
pub(super) struct Chunk {
    /// Rows that have ended before it.
    row: u32,
    /// By how much the cut was moved back.
    moved: u32,
    /// The chunk with the first entries of `row`: this one, unless the row is cut here.
    first: u32,
    /// The chunk with the end of `row`; of no account unless the row is cut here.
    last: u32,
}

/// The chunks of a matrix, and one more where they end.
///
/// Entries and row ends are counted together, in the order in which they are met, and cut into equal pieces. A cut that would leave
/// only a few entries of its row behind is moved back, so that short rows are never cut.
pub(super) fn chunks(row_ptr: &[usize], variant: &Variant) -> Vec<Chunk> {
    let nrows = row_ptr.len() - 1;
    let (spacing, reach) = (variant.spacing() as usize, variant.reach() as usize);
    // What is met before the entries of a row.
    let before = |row: usize| row_ptr[row] + row;
    let chunk = |number: usize| {
        let cut = (number * spacing).min(before(nrows));
        let (mut row, mut beyond) = (0, nrows + 1);
        while beyond - row > 1 {
            let middle = usize::midpoint(row, beyond);
            if before(middle) <= cut { row = middle } else { beyond = middle }
        }
        let behind = cut - before(row);
        let (moved, first, last) = if behind <= reach {
            (behind, number, number)
        } else {
            // The next cut may have been moved back to where the row begins.
            let first = (before(row) + reach) / spacing;
            (0, first, (before(row) + row_ptr[row + 1] - row_ptr[row]) / spacing)
        };
        // Rows are fewer than 2³², and so are chunks of any matrix that fits a machine.
        Chunk { row: row as u32, moved: moved as u32, first: first as u32, last: last as u32 }
    };
    let count = variant.count(nrows as u64, row_ptr[nrows] as u64) as usize;
    (0..=count).into_par_iter().map(chunk).collect()
}

/// Whether any row is cut.
pub(super) fn any_cut(chunks: &[Chunk]) -> bool {
    (0..).zip(chunks).any(|(number, chunk)| chunk.first != number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As small as it can be: chunks of 60, cuts moved by no entry at all.
    const SMALL: Variant = Variant { kernel: "none", capacity: 64, threads: 32 };

    fn offsets(lengths: &[usize]) -> Vec<usize> {
        let ends = lengths.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    #[test]
    fn chunks_by_hand() {
        let uncut = |row, moved, number| Chunk { row, moved, first: number, last: number };
        assert_eq!(chunks(&[0], &VARIANTS[0]), [uncut(0, 0, 0)], "no rows, no chunks");
        assert_eq!(
            chunks(&[0; 5], &VARIANTS[0]),
            [uncut(0, 0, 0), uncut(4, 0, 1)],
            "four row ends in one chunk"
        );
        // The first cut, at 1920, has 5 entries of the second row before it and is moved; the other two cut it. The row and its end take the
        // places 1915 to 6915.
        let row = |first, last| Chunk { row: 1, moved: 0, first, last };
        let table = chunks(&offsets(&[1914, 5000, 0]), &VARIANTS[0]);
        assert_eq!(table, [uncut(0, 0, 0), uncut(1, 5, 1), row(1, 3), row(1, 3), uncut(3, 0, 4)]);
        assert!(any_cut(&table) && !any_cut(&table[..2]));
    }

    #[test]
    fn the_kernel_has_every_variant() {
        let kernel = include_str!("../../../kernels/csr.cu");
        assert!(kernel.contains("constexpr u32 SPACING = CAPACITY - CAPACITY / 16;"));
        for Variant { kernel: name, capacity, threads } in &VARIANTS {
            let way = kernel.split(&format!("BALANCED(csr_{name}_##SUFFIX, ")).nth(1).unwrap();
            assert!(
                way.split(", ").skip(1).take(2).eq([capacity.to_string(), threads.to_string()]),
                "{name}"
            );
        }
    }

    proptest! {
        #[test]
        fn chunks_hold_everything_once_and_know_the_rows_they_share(
            lengths in prop::collection::vec(prop_oneof![4 => 0usize..9, 2 => 50usize..80, 1 => 0usize..4000], 0..300),
            variant in prop_oneof![Just(&SMALL), Just(&VARIANTS[1])],
        ) {
            let row_ptr = offsets(&lengths);
            let (nrows, nnz) = (lengths.len(), row_ptr[lengths.len()]);
            let table = chunks(&row_ptr, variant);
            prop_assert_eq!(table.len() as u64, variant.count(nrows as u64, nnz as u64) + 1);
            let start = |number: usize| {
                let cut = (number * variant.spacing() as usize).min(nrows + nnz);
                cut - table[number].moved as usize
            };
            prop_assert_eq!((start(0), start(table.len() - 1)), (0, nrows + nnz));
            for number in 0..table.len() - 1 {
                // Loads may begin three entries early.
                let size = start(number + 1) - start(number);
                prop_assert!(0 < size && size + 3 <= variant.capacity as usize);
            }
            for (number, chunk) in table.iter().enumerate() {
                let row = chunk.row as usize;
                let begin = row_ptr[row] + row;
                prop_assert!(begin <= start(number));
                if start(number) == begin {
                    prop_assert_eq!(chunk.first as usize, number);
                    continue;
                }
                prop_assert!((chunk.first as usize) < number && number <= chunk.last as usize);
                prop_assert!(lengths[row] as u64 > variant.reach());
                let holds = |number: u32, place| start(number as usize) <= place && place < start(number as usize + 1);
                prop_assert!(holds(chunk.first, begin) && holds(chunk.last, begin + lengths[row]));
            }
        }
    }
}
