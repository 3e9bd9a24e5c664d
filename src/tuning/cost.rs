//! Cost model: predicted time of a plan, from the work of its product and from measured
//! coefficients.
//!
//! The time of a product is a sum of terms, each some work times a coefficient of the kernel:
//! entries, padding, row sums, slices, gathers that miss the caches, bytes that stream from memory.
//! Work terms are computed from [`Work`] and [`MatrixFeatures`]. They are exact except for the
//! padding of tiles, the size of blocks, and the packing of large matrices. Coefficients come from
//! a [`Profile`](super::profile::Profile), as do the sizes of caches and branch predictors that
//! work terms are counted against (the latency of memory is counted against the L2 of the device),
//! and a factor for effects that a sum cannot express (see
//! [`correction`](super::correction)).
//!
//! Coefficients measured on another device are scaled first: see [`Scale`](super::scale::Scale).

use super::features::MatrixFeatures;
use crate::device::{DeviceSpec, cpu};
use crate::formats::Work;
use serde::{Deserialize, Serialize};

/// Number of entries in which the longest row is counted. Coefficients are fitted to this unit.
const LONG_ROW_UNIT: f64 = 1024.0;

/// Work terms of one product, in the order of [`Term::ALL`].
pub type WorkTerms = [f64; Term::COUNT];

/// A term of a predicted time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Term {
    /// Starting and finishing a product.
    Call,
    /// Waking up the threads that share the work.
    WakeUp,
    /// Multiplying the stored slots.
    Slots,
    /// Gathering elements of `x` one by one.
    Gathers,
    /// Additions to a sum that depend on the addition before.
    DependentAdds,
    /// Testing slots for padding.
    MaskedSlots,
    /// Masks of slots whose `x` is gathered, on a CPU.
    MaskedGathers,
    /// Following many columns at the same time.
    StridedSlots,
    /// Looking values up by their codes.
    Decodes,
    /// Multiplying entries outside of the slots: of a COO part, or of long rows.
    Outside,
    /// Writing row sums.
    Rows,
    /// Writing row sums to distant addresses, and gathering `x` for rows that are far apart.
    Scatter,
    /// Rows whose length differs from that of the row before.
    Uneven,
    /// Starts of slices, sections, diagonals and other parts of a format.
    Starts,
    /// Gathers of `x` that miss the nearest cache.
    NearMisses,
    /// Gathers of `x` that miss the middle caches.
    FarMisses,
    /// Contention for the multiprocessors of a GPU with the end of the preceding launch.
    Contention,
    /// Launching kernels of a GPU after the first, or after the end of the preceding launch.
    Launches,
    /// Work of one thread of a GPU while the others wait for it.
    CriticalPath,
    /// Latency of the longest row if entries are outside of the slots: on a GPU several warps
    /// multiply it, and their sums are added up.
    LongRowLatency,
    /// Long rows, which are multiplied separately.
    LongRows,
    /// Additional latency of the work of one thread of a GPU if its data come from memory.
    MemoryLatency,
    /// Streaming data that do not stay in the cache.
    Bytes,
}

impl Term {
    /// Number of terms.
    pub const COUNT: usize = 23;

    /// All terms.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Call,
        Self::WakeUp,
        Self::Slots,
        Self::Gathers,
        Self::DependentAdds,
        Self::MaskedSlots,
        Self::MaskedGathers,
        Self::StridedSlots,
        Self::Decodes,
        Self::Outside,
        Self::Rows,
        Self::Scatter,
        Self::Uneven,
        Self::Starts,
        Self::NearMisses,
        Self::FarMisses,
        Self::Contention,
        Self::Launches,
        Self::CriticalPath,
        Self::LongRowLatency,
        Self::LongRows,
        Self::MemoryLatency,
        Self::Bytes,
    ];

    /// True if more threads shorten the term. Memory and the call are not shortened.
    pub(super) const fn scales(self) -> bool {
        !matches!(
            self,
            Self::Call
                | Self::WakeUp
                | Self::Contention
                | Self::Launches
                | Self::CriticalPath
                | Self::LongRowLatency
                | Self::MemoryLatency
                | Self::Bytes
        )
    }

    /// Description of the term, to follow "more time for".
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Call => "launch overhead",
            Self::WakeUp => "thread wake-up",
            Self::Slots => "stored slots",
            Self::DependentAdds => "dependent additions",
            Self::MaskedSlots | Self::MaskedGathers => "padding masks",
            Self::StridedSlots => "concurrent column streams",
            Self::Decodes => "dictionary lookups",
            Self::Outside => "entries outside of the slots",
            Self::Rows => "row sums",
            Self::Scatter => "permuted rows",
            Self::Uneven => "changes of the row length",
            Self::Starts => "starts of slices, sections or other parts",
            Self::Gathers | Self::NearMisses | Self::FarMisses => "gathering x",
            Self::Contention => "SM contention with the previous launch",
            Self::Launches => "further kernel launches",
            Self::LongRows => "long rows, multiplied separately",
            Self::CriticalPath | Self::MemoryLatency => "the longest row or slice of one thread",
            Self::LongRowLatency => "adding up the longest row",
            Self::Bytes => "memory traffic",
        }
    }
}

/// Defines the struct and its conversions from and to arrays, from one list in the order of
/// [`Term::ALL`].
macro_rules! coefficients {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Coefficients of one kernel and scalar type, in nanoseconds per unit of work.
        #[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Coefficients {
            $($(#[$doc])+ pub $name: f64,)+
            /// Packing of a slot.
            pub pack_slot: f64,
            /// Packing of a row.
            pub pack_row: f64,
            /// Fixed cost of packing.
            pub pack_call: f64,
        }

        impl Coefficients {
            /// Names of the coefficients of the product, in the order of [`Term::ALL`].
            pub const NAMES: [&'static str; Term::COUNT] = [$(stringify!($name)),+];

            /// Names of the coefficients of packing, in the order of [`packed`].
            pub const PACKING_NAMES: [&'static str; PACKED] =
                ["pack_slot", "pack_row", "pack_call"];

            /// Coefficients of the product, in the order of [`Term::ALL`].
            pub const fn terms(&self) -> [f64; Term::COUNT] {
                [$(self.$name),+]
            }

            /// Creates coefficients from those of the product and those of packing.
            pub const fn new(product: [f64; Term::COUNT], pack: [f64; PACKED]) -> Self {
                let [$($name),+] = product;
                let [pack_slot, pack_row, pack_call] = pack;
                Self { $($name,)+ pack_slot, pack_row, pack_call }
            }

            /// Coefficients of packing, in the order of [`packed`].
            pub const fn packing(&self) -> [f64; PACKED] {
                [self.pack_slot, self.pack_row, self.pack_call]
            }
        }
    };
}

coefficients! {
    /// A product of any size.
    call,
    /// A product shared by several threads; additional.
    wake_up,
    /// A stored slot.
    slot,
    /// A slot whose `x` is gathered; additional.
    gathered,
    /// A slot with an addition that depends on the slot before; additional.
    dependent_add,
    /// A slot that is tested for padding; additional.
    masked_slot,
    /// A slot that is tested for padding and whose `x` is gathered; additional, 0 on a GPU.
    masked_gather,
    /// A slot beyond the number of columns that can be followed at no cost; additional.
    strided_slot,
    /// An entry whose value is looked up by its code; additional.
    decoded,
    /// An entry outside of the slots: of a COO part, or of a long row.
    outside,
    /// A row sum.
    row,
    /// A row sum, for every doubling of the sorting window; additional.
    scattered,
    /// A row whose length differs from that of the row before; additional.
    uneven,
    /// A start of a slice, section, diagonal or other part of a format.
    start,
    /// A gather that misses the nearest cache.
    near_miss,
    /// A gather that misses the middle caches.
    far_miss,
    /// A launch that overlaps with the preceding one and does not fit beside it; 0 on the CPU.
    contention,
    /// A kernel launched after the first, or one that cannot start before the preceding launch has
    /// ended; 0 on the CPU.
    launch,
    /// A slot that one thread of a GPU processes while the others wait; 0 on the CPU.
    critical_path,
    /// A doubling of the length of the longest row, if entries are outside of the slots; 0 on the
    /// CPU.
    long_row_latency,
    /// A long row, which is multiplied separately; 0 on the CPU.
    long_row,
    /// A slot that one thread of a GPU processes while the others wait, if it comes from memory and
    /// not from the cache; additional, 0 on the CPU.
    memory_latency,
    /// A byte that is streamed from memory.
    byte,
}

impl Coefficients {
    /// Upper limit of a coefficient, in nanoseconds.
    pub const MAX: f64 = 1e12;

    /// True if every coefficient is at least 0 and at most a quarter of an hour. All predictions
    /// are then finite.
    pub fn is_valid(&self) -> bool {
        self.terms().iter().chain(&self.packing()).all(|c| (0.0..=Self::MAX).contains(c))
    }

    /// Time of a part of a large product, in ns: every byte is read from memory, and gathers do not
    /// miss.
    pub(super) fn cost(&self, work: &Work) -> f64 {
        let parts = [
            (work.slots, self.slot),
            (work.dependent_adds, self.dependent_add),
            (work.masked_slots, self.masked_slot),
            (work.masked_gathers(), self.masked_gather),
            (work.strided_slots, self.strided_slot),
            (work.decoded, self.decoded),
            (work.outside, self.outside),
            (work.rows, self.row),
            (work.scattered, self.scattered),
            (work.starts, self.start),
            (work.bytes(), self.byte),
            (work.gathered, self.gathered),
        ];
        parts.iter().map(|&(count, each)| count as f64 * each).sum()
    }
}

/// Capacity of caches and branch predictors, in entries and branches; part of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CacheReach {
    /// Number of entries after which a group of eight columns is still in the nearest cache.
    pub near: f64,
    /// Number of entries after which a group of eight columns is still in the middle caches of a
    /// core, or in the shared L2 of a GPU.
    pub far: f64,
    /// Number of row-length changes that branch predictors learn when the same rows are repeated.
    pub branches: f64,
}

impl CacheReach {
    /// Defaults of new profiles. On a CPU: 32 KiB and 1 MiB of a core, half of them for `x`, and
    /// the number that Zen 4 learns (2000 to 30,000 fit equally well). On a GPU: the L1 of a
    /// multiprocessor, 256 KiB of an H200, and its L2.
    pub fn usual(device: &DeviceSpec) -> Self {
        /// Number of entries whose `x` fills half of an H200's L2 of 60 MiB.
        const FAR: (f64, f64) = (1_048_576.0, (60 << 20) as f64);
        match &device.gpu {
            None => Self { near: 4096.0, far: 131_072.0, branches: 24_000.0 },
            Some(gpu) => {
                Self { near: 8192.0, far: FAR.0 / FAR.1 * gpu.l2_bytes as f64, branches: 8000.0 }
            }
        }
    }

    /// Scales to a device whose last-level cache is `cache` times as large. Nearest caches differ
    /// less and are not scaled.
    #[must_use]
    pub fn scaled(self, cache: f64) -> Self {
        Self { far: self.far * cache, ..self }
    }

    /// True if all of them are finite and above 0.
    pub fn is_valid(&self) -> bool {
        [self.near, self.far, self.branches].iter().all(|r| r.is_finite() && *r > 0.0)
    }
}

/// Computes the work terms of one product on a device with a last-level cache of `cache_bytes`.
pub fn work_terms(
    work: &Work,
    features: &MatrixFeatures,
    cache_bytes: f64,
    reach: &CacheReach,
    device: &DeviceSpec,
) -> WorkTerms {
    let is_gpu = device.gpu.is_some();
    let missing = |within: f64| features.nnz as f64 * (1.0 - features.reuse.share_within(within));
    let steps = work.slots.saturating_add(work.outside).saturating_add(work.rows);
    let (rows, changes) = (features.nrows as f64, features.changes as f64);
    // Branch predictors remember the preceding product: nearly all branches up to a number, and
    // hardly any beyond it. In held-out validation, fits for Zen 4 cores chose with a mean regret
    // of 1.051, and of 1.059 if the share falls off as slowly as it does on a GPU.
    let sharpness = if is_gpu { 1 } else { 4 };
    let forgotten = (changes / reach.branches).powi(sharpness);
    let surprises = changes * (forgotten / (1.0 + forgotten));
    // The threads of a GPU wait for one another if row lengths differ, with or without a branch.
    let branchless = if is_gpu { 0 } else { work.branchless };
    let bytes = work.bytes() as f64;
    // On an H200, the logarithm of the number of pieces chose better than the number itself: mean
    // held-out regret 1.034 and 1.038.
    let pieces = if work.outside > 0 { f64::from(features.max) / LONG_ROW_UNIT } else { 0.0 };
    // Data that are read repeatedly in the same order stay in a cache that can hold them, and are
    // evicted from a smaller one.
    let beyond = |cache: f64| ((bytes - cache) / cache).clamp(0.0, 1.0);
    // A GPU loses lines of its L2 from half its size on.
    let from_memory =
        device.gpu.as_ref().map_or(0.0, |gpu| beyond((gpu.l2_bytes / 2).max(1) as f64));
    let path = if is_gpu { work.critical_path as f64 } else { 0.0 };
    let mut work_terms = [
        1.0,
        if !is_gpu && cpu::task_count(steps) > 1 { 1.0 } else { 0.0 },
        work.slots as f64,
        work.gathered as f64,
        work.dependent_adds as f64,
        work.masked_slots as f64,
        if is_gpu { 0.0 } else { work.masked_gathers() as f64 },
        work.strided_slots as f64,
        work.decoded as f64,
        work.outside as f64,
        work.rows as f64,
        work.scattered as f64,
        work.rows.saturating_sub(branchless) as f64 * surprises / rows.max(1.0),
        work.starts as f64,
        missing(reach.near),
        missing(reach.far),
        // Two launches can each have multiprocessors of their own only if their blocks together do
        // not exceed the number of multiprocessors.
        f64::from(is_gpu && 2 * work.overlapping > device.threads as u64),
        if is_gpu { work.relaunches as f64 } else { 0.0 },
        path,
        if is_gpu { pieces.ln_1p() / std::f64::consts::LN_2 } else { 0.0 },
        if is_gpu { work.long_rows as f64 } else { 0.0 },
        path * from_memory,
        bytes * beyond(cache_bytes),
    ];
    // Work that the threads cannot share is counted once for each waiting thread.
    let waiting = if is_gpu { 1.0 } else { cpu::unsharable(steps, device.threads) };
    for (work, term) in work_terms.iter_mut().zip(Term::ALL) {
        *work *= if term.scales() { waiting } else { 1.0 };
    }
    work_terms
}

/// Number of work terms of packing.
pub const PACKED: usize = 3;

/// Work terms of packing: slots, rows, and a constant, which on a GPU stands for launches and
/// allocations.
pub fn packed(work: &Work) -> [f64; PACKED] {
    [(work.slots + work.outside) as f64, work.rows as f64, 1.0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, GpuSpec};

    /// A CPU with one thread, and a GPU.
    fn devices() -> (DeviceSpec, DeviceSpec) {
        let cpu = DeviceSpec { threads: 1, ..Device::Cpu.spec() };
        let gpu = GpuSpec { l2_bytes: 60 << 20, memory_bytes: 1 << 30, driver: "13.0".to_owned() };
        (cpu.clone(), DeviceSpec { gpu: Some(gpu), ..cpu })
    }

    /// Work terms of a plan with long rows, the longest with `max` entries.
    fn work_terms_of(max: u32, tail: u64, device: &DeviceSpec) -> WorkTerms {
        let features = MatrixFeatures {
            nrows: 100,
            nnz: 1000,
            max,
            changes: 100,
            ..MatrixFeatures::default()
        };
        let slots = Work { slots: 100, gathered: 25, masked_slots: 80, ..Work::default() };
        let work = Work { rows: 100, branchless: 100, outside: tail, ..slots };
        work_terms(&work, &features, 1e6, &CacheReach::usual(device), device)
    }

    #[test]
    fn terms_of_gpus_and_of_branch_predictors() {
        let (cpu, gpu) = devices();
        let latency =
            |max, tail, device| work_terms_of(max, tail, device)[Term::LongRowLatency as usize];
        assert_eq!((latency(7 * 1024, 9, &gpu), latency(0, 9, &gpu)), (3.0, 0.0));
        assert_eq!((latency(7 * 1024, 0, &gpu), latency(7 * 1024, 9, &cpu)), (0.0, 0.0));
        let uneven = |device| work_terms_of(9, 0, device)[Term::Uneven as usize];
        assert!(uneven(&gpu) > 0.0 && uneven(&cpu) == 0.0);
        let masks = |device| work_terms_of(9, 0, device)[Term::MaskedGathers as usize];
        assert_eq!((masks(&cpu), masks(&gpu)), (20.0, 0.0));
    }

    #[test]
    fn long_rows_and_the_latency_of_memory_are_terms_of_gpus() {
        let (cpu, gpu) = devices();
        let terms = |megabytes: u64, device: &DeviceSpec| {
            let path = Work { critical_path: 12, long_rows: 7, ..Work::default() };
            let work = Work { matrix_bytes: megabytes << 20, ..path };
            let features = MatrixFeatures::default();
            let all = work_terms(&work, &features, 1e9, &CacheReach::usual(device), device);
            [Term::CriticalPath, Term::MemoryLatency, Term::LongRows].map(|term| all[term as usize])
        };
        // The L2 has 60 MiB.
        assert_eq!(terms(30, &gpu), [12.0, 0.0, 7.0]);
        assert_eq!(terms(45, &gpu), [12.0, 6.0, 7.0]);
        assert_eq!(terms(90, &gpu), [12.0, 12.0, 7.0]);
        assert_eq!(terms(90, &cpu), [0.0; 3]);
    }

    #[test]
    fn misses_streams_and_idle_threads_are_counted() {
        let cpu = DeviceSpec { threads: 4, ..Device::Cpu.spec() };
        // Three quarters of the gathers have been nearby, a quarter never.
        let mut reuse = crate::analysis::Reuse { first: 250, ..Default::default() };
        reuse.counts[0] = 750;
        let features = MatrixFeatures { nrows: 100, nnz: 1000, reuse, ..MatrixFeatures::default() };
        let terms = |slots, matrix_bytes| {
            let work = Work { slots, matrix_bytes, rows: 100, ..Work::default() };
            work_terms(&work, &features, 1e6, &CacheReach::usual(&cpu), &cpu)
        };
        // A product in one task keeps three of four threads waiting.
        assert_eq!(cpu::task_count(1100), 1);
        let small = terms(1000, 100_000);
        assert_eq!(small[Term::Slots as usize], 4.0 * 1000.0);
        let misses = [Term::NearMisses, Term::FarMisses].map(|term| small[term as usize]);
        assert_eq!(misses, [4.0 * 250.0; 2]);
        assert_eq!(small[Term::Bytes as usize], 0.0);
        assert_eq!(terms(1000, 1_500_000)[Term::Bytes as usize], 750_000.0);
        assert_eq!(terms(1000, 3_000_000)[Term::Bytes as usize], 3_000_000.0);
    }
}
