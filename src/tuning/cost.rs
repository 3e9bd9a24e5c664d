//! The cost model: what a plan is predicted to take, from what its product reads and does and from measured coefficients.
//!
//! The time of a product is a sum of terms, each an amount times a coefficient of the kernel: entries, padding, row sums, slices,
//! gathers that miss the caches, bytes that stream from memory. Amounts come from [`Traffic`] and [`Facts`], and are exact but
//! for the padding of tiles, what blocks take, and the packing of large matrices;
//! coefficients come from a [`Profile`](super::profile::Profile), and so do the sizes of caches and branch predictors that amounts are
//! counted against, and a factor for what a sum cannot say (see [`correction`](super::correction)).
//!
//! Coefficients that were measured on another device are scaled first: see [`Scale`](super::scale::Scale).

use super::facts::Facts;
use crate::device::{DeviceSpec, cpu};
use crate::formats::Traffic;
use serde::{Deserialize, Serialize};

/// Entries in which the longest of the long rows is counted: coefficients are fitted to this unit.
const PIECE: f64 = 1024.0;

/// What one product does, in amounts; the order of [`Term::ALL`].
pub type Amounts = [f64; Term::COUNT];

/// A part of a predicted time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Term {
    /// Beginning and ending a product.
    Call,
    /// Waking the threads that share the work.
    Wake,
    /// Multiplying the stored slots.
    Slots,
    /// Gathering `x` one by one.
    Gathers,
    /// Adding to a sum that the entry before is still being added to.
    Chains,
    /// Looking whether slots are padding.
    Guards,
    /// Following many columns at once.
    Strides,
    /// Looking values up by their codes.
    Decodes,
    /// Multiplying the entries of the COO part.
    Tail,
    /// Writing row sums.
    Rows,
    /// Writing row sums far from one another, and gathering `x` for rows that lie apart.
    Scatter,
    /// Rows of another length than the one before.
    Uneven,
    /// Beginning slices, sections and diagonals.
    Groups,
    /// Gathers of `x` that miss the nearest cache.
    NearMisses,
    /// Gathers of `x` that miss the middle caches.
    FarMisses,
    /// Sharing the multiprocessors of a GPU with the launch before, which ends meanwhile.
    Crowd,
    /// Launching kernels of a GPU after the first, or behind the end of the launch before.
    Launches,
    /// What one thread of a GPU goes through while the others wait for it.
    Depth,
    /// What the longest row waits for where its entries lie apart from the slots: its pieces, which are added up on a GPU.
    Apart,
    /// Streaming what does not stay in the cache.
    Stream,
}

impl Term {
    /// Number of terms.
    pub const COUNT: usize = 20;

    /// Every term.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Call,
        Self::Wake,
        Self::Slots,
        Self::Gathers,
        Self::Chains,
        Self::Guards,
        Self::Strides,
        Self::Decodes,
        Self::Tail,
        Self::Rows,
        Self::Scatter,
        Self::Uneven,
        Self::Groups,
        Self::NearMisses,
        Self::FarMisses,
        Self::Crowd,
        Self::Launches,
        Self::Depth,
        Self::Apart,
        Self::Stream,
    ];

    /// Whether more threads make it shorter; memory and the call do not.
    pub(super) const fn scales(self) -> bool {
        !matches!(
            self,
            Self::Call | Self::Wake | Self::Crowd | Self::Launches | Self::Depth | Self::Apart | Self::Stream
        )
    }

    /// The term in words, to stand after "more time for".
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Call => "starting",
            Self::Wake => "waking threads",
            Self::Slots => "stored slots",
            Self::Chains => "sums that wait for one another",
            Self::Guards => "looking for padding",
            Self::Strides => "following many columns at once",
            Self::Decodes => "looking values up",
            Self::Tail => "the COO part",
            Self::Rows => "row sums",
            Self::Scatter => "rows out of their order",
            Self::Uneven => "rows of changing length",
            Self::Groups => "slices, sections or diagonals",
            Self::Gathers | Self::NearMisses | Self::FarMisses => "gathering x",
            Self::Crowd => "sharing multiprocessors with the launch before",
            Self::Launches => "launching further kernels",
            Self::Depth => "the longest row or slice, which keeps a thread busy while the others wait",
            Self::Apart => "the pieces of the longest row, which lies apart",
            Self::Stream => "bytes from memory",
        }
    }
}

/// The struct and its way from and to arrays, from one list in the order of [`Term::ALL`].
macro_rules! coefficients {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Nanoseconds for every amount, of one kernel and scalar.
        #[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Coefficients {
            $($(#[$doc])+ pub $name: f64,)+
            /// Packing a slot.
            pub pack_slot: f64,
            /// Packing a row.
            pub pack_row: f64,
            /// Packing anything at all; nothing in older profiles.
            pub pack_call: f64,
        }

        impl Coefficients {
            /// The names of the coefficients of the product, in the order of [`Term::ALL`].
            pub const NAMES: [&'static str; Term::COUNT] = [$(stringify!($name)),+];

            /// The names of the coefficients of packing, in the order of [`packed`].
            pub const PACKING_NAMES: [&'static str; PACKED] = ["pack_slot", "pack_row", "pack_call"];

            /// The coefficients of the product, in the order of [`Term::ALL`].
            pub const fn terms(&self) -> [f64; Term::COUNT] {
                [$(self.$name),+]
            }

            /// From the coefficients of the product and those of packing.
            pub const fn new(product: [f64; Term::COUNT], pack: [f64; PACKED]) -> Self {
                let [$($name),+] = product;
                let [pack_slot, pack_row, pack_call] = pack;
                Self { $($name,)+ pack_slot, pack_row, pack_call }
            }

            /// The coefficients of packing, in the order of [`packed`].
            pub const fn packing(&self) -> [f64; PACKED] {
                [self.pack_slot, self.pack_row, self.pack_call]
            }
        }
    };
}

coefficients! {
    /// A product, however small.
    call,
    /// A product that several threads share, in addition.
    wake,
    /// A stored slot.
    slot,
    /// A slot whose `x` is gathered, in addition.
    gathered,
    /// A slot whose sum waits for the one before, in addition.
    chained,
    /// A slot that may be padding, in addition.
    guarded,
    /// A slot beyond the columns that are followed without effort, in addition.
    strided,
    /// An entry whose value is looked up by its code, in addition.
    decoded,
    /// An entry of the COO part.
    tail,
    /// A row sum.
    row,
    /// A row sum, for every doubling of the window it was sorted in, in addition.
    scattered,
    /// A row of another length than the one before, in addition.
    uneven,
    /// A slice, section or diagonal, and a row in the COO part.
    group,
    /// A gather from beyond the nearest cache.
    near_miss,
    /// A gather from beyond the middle caches.
    far_miss,
    /// A launch that overlaps with the one before and has not room beside it; nothing on the CPU.
    crowd,
    /// A kernel that is launched after the first, or cannot begin while the launch before ends; nothing on the CPU.
    launch,
    /// A slot that one thread of a GPU goes through while the others wait; nothing on the CPU.
    depth,
    /// A doubling of the pieces of the longest row where entries lie apart from the slots; nothing on the CPU.
    apart,
    /// A byte streamed from memory.
    byte,
}

impl Coefficients {
    /// Whether every coefficient is at least 0, and at most a quarter of an hour: then no prediction is anything but a finite number.
    pub fn is_valid(&self) -> bool {
        /// Nanoseconds that no amount takes.
        const MOST: f64 = 1e12;
        self.terms().iter().chain(&self.packing()).all(|c| (0.0..=MOST).contains(c))
    }
}

/// What caches and branch predictors remember, in entries and branches: a part of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Reach {
    /// Entries within which a group of eight columns is still in the nearest cache when it is touched again.
    pub near: f64,
    /// The same for the middle caches of a core, and for the L2 that all of a GPU share.
    pub far: f64,
    /// Changes of the row length that branch predictors learn when the same rows come again and again.
    pub branches: f64,
}

impl Reach {
    /// What new profiles are given: 32 KiB and 1 MiB of a core, half of them `x`, and what Zen 4 learns
    /// (2000 to 30,000 fit alike); of a GPU the L1 of a multiprocessor, 256 KiB of an H200, and its L2.
    pub fn usual(device: &DeviceSpec) -> Self {
        /// Entries whose `x` half of an H200's L2 of 60 MiB holds.
        const FAR: (f64, f64) = (1_048_576.0, (60 << 20) as f64);
        match &device.gpu {
            None => Self { near: 4096.0, far: 131_072.0, branches: 24_000.0 },
            Some(gpu) => Self { near: 8192.0, far: FAR.0 / FAR.1 * gpu.l2_bytes as f64, branches: 8000.0 },
        }
    }

    /// On a device whose last cache is so many times as large. Nearest caches differ less.
    #[must_use]
    pub fn scaled(self, cache: f64) -> Self {
        Self { far: self.far * cache, ..self }
    }

    /// Whether all of it is finite and above 0.
    pub fn is_valid(&self) -> bool {
        [self.near, self.far, self.branches].iter().all(|r| r.is_finite() && *r > 0.0)
    }
}

/// The amounts of one product on a device whose last cache holds `cache_bytes`.
pub fn amounts(
    traffic: &Traffic,
    facts: &Facts,
    cache_bytes: f64,
    reach: &Reach,
    device: &DeviceSpec,
) -> Amounts {
    let is_gpu = device.gpu.is_some();
    let missing = |within: f64| facts.nnz as f64 * (1.0 - facts.reuse.share_within(within));
    let work = traffic.slots.saturating_add(traffic.tail).saturating_add(traffic.rows);
    let (rows, changes) = (facts.nrows as f64, facts.changes as f64);
    // Branches are remembered from the product before, nearly all of them up to so many, and beyond that hardly any: held out, fits for Zen 4 cores chose
    // with a mean regret of 1.051, and of 1.059 where the share falls off as slowly as it does on a GPU.
    let sharpness = if is_gpu { 1 } else { 4 };
    let forgotten = (changes / reach.branches).powi(sharpness);
    let surprises = changes * (forgotten / (1.0 + forgotten));
    // The threads of a GPU wait for one another where rows differ, whether there is a branch or not.
    let branchless = if is_gpu { 0 } else { traffic.branchless };
    let bytes = traffic.bytes() as f64;
    // Their logarithm chose better on an H200, on classes that were held out, than their number did: mean regret 1.034 and 1.038.
    let pieces = if traffic.tail > 0 { f64::from(facts.max) / PIECE } else { 0.0 };
    let mut amounts = [
        1.0,
        if !is_gpu && cpu::parts(work) > 1 { 1.0 } else { 0.0 },
        traffic.slots as f64,
        traffic.gathered as f64,
        traffic.chained as f64,
        traffic.guarded as f64,
        traffic.strided as f64,
        traffic.decoded as f64,
        traffic.tail as f64,
        traffic.rows as f64,
        traffic.scattered as f64,
        traffic.rows.saturating_sub(branchless) as f64 * surprises / rows.max(1.0),
        traffic.groups as f64,
        missing(reach.near),
        missing(reach.far),
        // Each of two launches can have multiprocessors of its own only where they have not more blocks together.
        f64::from(is_gpu && 2 * traffic.overlapping > device.threads as u64),
        if is_gpu { traffic.relaunches as f64 } else { 0.0 },
        if is_gpu { traffic.depth as f64 } else { 0.0 },
        if is_gpu { pieces.ln_1p() / std::f64::consts::LN_2 } else { 0.0 },
        // What is read again and again in the same order stays in a cache that holds it, and leaves one that does not.
        bytes * ((bytes - cache_bytes) / cache_bytes).clamp(0.0, 1.0),
    ];
    // What the threads cannot share counts as often as there are threads that wait for it.
    let waiting = if is_gpu { 1.0 } else { cpu::unsharable(work, device.threads) };
    for (amount, term) in amounts.iter_mut().zip(Term::ALL) {
        *amount *= if term.scales() { waiting } else { 1.0 };
    }
    amounts
}

/// Number of amounts that packing goes by.
pub const PACKED: usize = 3;

/// What is packed: slots, rows, and that anything is, which on a GPU takes launches and allocations.
pub fn packed(traffic: &Traffic) -> [f64; PACKED] {
    [(traffic.slots + traffic.tail) as f64, traffic.rows as f64, 1.0]
}

/// The predicted time of a plan, in parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Nanoseconds of every term, in the order of [`Term::ALL`].
    pub terms: [f64; Term::COUNT],
    /// Nanoseconds by which the largest piece of work that cannot be shared outlasts the rest.
    pub imbalance: f64,
    /// What the sum of both is multiplied by: what plans like this took over what their amounts say. 1 where nothing is known.
    pub correction: f64,
    /// Nanoseconds to pack the matrix and to bring it to the device: profiles of GPUs are fitted to the time of both.
    pub prepare: f64,
}

impl Prediction {
    /// Predicts a product on a device from its coefficients.
    pub fn new(c: &Coefficients, traffic: &Traffic, amounts: &Amounts, device: &DeviceSpec) -> Self {
        let coefficients = c.terms();
        let terms: [f64; Term::COUNT] = std::array::from_fn(|i| coefficients[i] * amounts[i]);
        let total: f64 = terms.iter().sum();
        // On a GPU the depth stands for it: its threads are too slow to be told from the sum of all.
        let serial = if device.gpu.is_some() { 0 } else { traffic.serial };
        let alone = terms[0] + terms[1] + serial as f64 * c.slot * device.threads as f64;
        let prepare = c.packing().iter().zip(packed(traffic)).map(|(c, amount)| c * amount).sum();
        Self { terms, imbalance: (alone - total).max(0.0), correction: 1.0, prepare }
    }

    /// With another correction.
    #[must_use]
    pub fn corrected(self, correction: f64) -> Self {
        Self { correction, ..self }
    }

    /// Nanoseconds of one product before it is corrected.
    pub fn sum(&self) -> f64 {
        self.terms.iter().sum::<f64>() + self.imbalance
    }

    /// Nanoseconds of one product.
    pub fn product(&self) -> f64 {
        self.sum() * self.correction
    }

    /// Nanoseconds of preparation and `calls` products, per product.
    pub fn amortised(&self, calls: u64) -> f64 {
        self.product() + self.prepare / calls.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, GpuSpec};

    /// The amounts of rows kept apart, of which the longest has so many entries.
    fn amounts_of(max: u32, tail: u64, device: &DeviceSpec) -> Amounts {
        let facts = Facts { nrows: 100, nnz: 1000, max, changes: 100, ..Facts::default() };
        let traffic = Traffic { rows: 100, branchless: 100, tail, ..Traffic::default() };
        amounts(&traffic, &facts, 1e6, &Reach::usual(device), device)
    }

    #[test]
    fn what_only_gpus_or_only_branches_wait_for() {
        let cpu = Device::Cpu.spec();
        let gpu = GpuSpec { l2_bytes: 60 << 20, memory_bytes: 1 << 30, driver: "13.0".to_owned() };
        let gpu = DeviceSpec { gpu: Some(gpu), ..cpu.clone() };
        let apart = |max, tail, device| amounts_of(max, tail, device)[Term::Apart as usize];
        assert_eq!((apart(7 * 1024, 9, &gpu), apart(0, 9, &gpu)), (3.0, 0.0));
        assert_eq!((apart(7 * 1024, 0, &gpu), apart(7 * 1024, 9, &cpu)), (0.0, 0.0));
        let uneven = |device| amounts_of(9, 0, device)[Term::Uneven as usize];
        assert!(uneven(&gpu) > 0.0 && uneven(&cpu) == 0.0);
    }
}
