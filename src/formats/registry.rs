//! The macro that makes the types of all formats from their list.

/// Declares `FormatKind` and `Plan` with a variant for each format of the list, from its module,
/// its unit struct and its plan, and the functions that call the format of a plan.
macro_rules! registry {
    ($($module:ident => $Format:ident($Plan:ident)),+ $(,)?) => {
        /// The storage formats. Ties between plans are broken in this order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum FormatKind {
            $(#[doc = concat!("See [`", stringify!($module), "`].")] $Format),+
        }

        impl FormatKind {
            /// All formats.
            #[doc(hidden)]
            pub const ALL: &'static [Self] = &[$(Self::$Format),+];

            /// Name of the format, as in the spelling of plans.
            #[doc(hidden)]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Format => stringify!($module)),+ }
            }

            /// An example of each kind of plan of the format.
            #[doc(hidden)]
            pub const fn examples(self) -> &'static [&'static str] {
                match self { $(Self::$Format => $module::$Format::EXAMPLES),+ }
            }
        }

        /// A format and its parameters: the storage of a matrix and its kernels.
        ///
        /// `Display` writes and `FromStr` parses its spelling: `sell(c:32,sigma:512)`.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum Plan {
            $(#[doc = concat!("See [`", stringify!($module), "`].")] $Format($module::$Plan)),+
        }

        impl Plan {
            /// Format of the plan.
            #[doc(hidden)]
            pub const fn format(&self) -> FormatKind {
                match self { $(Self::$Format(_) => FormatKind::$Format),+ }
            }

            /// Cost key of the plan on `on`: that of its coefficients in a profile.
            #[doc(hidden)]
            pub fn cost_key(&self, on: Target) -> &'static str {
                match self { $(Self::$Format(plan) => $module::$Format::cost_key(plan, on)),+ }
            }

            /// Cost key of the plan on `on` for a matrix with this work.
            #[doc(hidden)]
            pub fn cost_key_of(&self, on: Target, work: &Work) -> &'static str {
                match self {
                    $(Self::$Format(plan) => $module::$Format::cost_key_of(plan, on, work)),+
                }
            }

            /// Cost keys of the fallback kernels of one that was not measured, the nearest first. A
            /// cost key begins with the name of its format.
            #[doc(hidden)]
            pub fn fallback_cost_keys(key: &str) -> Vec<String> {
                match key.split('.').next() {
                    $(Some(stringify!($module)) => $module::$Format::fallback_cost_keys(key),)+
                    _ => Vec::new(),
                }
            }

            /// Work and memory traffic of one SpMV under this plan, computed without packing.
            #[doc(hidden)]
            pub fn work(&self, analysis: &Analysis, scalar: ScalarKind) -> Work {
                match self {
                    $(Self::$Format(plan) => $module::$Format::work(plan, analysis, scalar)),+
                }
            }

            /// Properties of the plan that its parameters decide.
            pub(crate) fn properties(&self) -> PlanProperties {
                match self { $(Self::$Format(plan) => $module::$Format::properties(plan)),+ }
            }

            /// Bounds of the bytes of [`Plan::work`], as multiples of the bytes that are packed.
            ///
            /// # Errors
            ///
            /// Reason why no matrix with this analysis can be packed under this plan.
            pub(crate) fn estimate_bounds(
                &self,
                analysis: &Analysis,
            ) -> Result<RangeInclusive<f64>, String> {
                match self {
                    $(Self::$Format(plan) => $module::$Format::estimate_bounds(plan, analysis)),+
                }
            }

            /// Kernels that a matrix of `bytes` bytes is expected to need on a GPU.
            pub(crate) fn gpu_kernels<T: Scalar>(
                &self,
                analysis: &Analysis,
                bytes: u64,
                gpu: Gpu,
            ) -> Vec<(Module, String)> {
                match self {
                    $(Self::$Format(plan) => {
                        $module::$Format::gpu_kernels::<T>(plan, analysis, bytes, gpu)
                    }),+
                }
            }

            /// Plan of a second packing for SpMM with at least so many units of vectors: of the
            /// format of the plan that is predicted to be the fastest for SpMV, or else of the
            /// first format that serves as one.
            pub(crate) fn for_spmm(
                analysis: &Analysis,
                on: Target,
                units: usize,
                fastest: Option<&Self>,
            ) -> Self {
                let same = match fastest {
                    $(Some(Self::$Format(plan)) => {
                        $module::$Format::spmm_plan(analysis, on, units, Some(plan))
                            .map(Self::$Format)
                    })+
                    None => None,
                };
                let any = || {
                    let plans = [$(
                        $module::$Format::spmm_plan(analysis, on, units, None).map(Self::$Format)
                    ),+];
                    plans.into_iter().flatten().next()
                };
                same.or_else(any).expect("a format has SpMM on every kind of device")
            }

            /// True if the format serves as a second packing for SpMM with at least so many units
            /// of vectors on such a device.
            pub(crate) fn has_spmm(&self, analysis: &Analysis, on: Target, units: usize) -> bool {
                match self {
                    $(Self::$Format(_) => {
                        $module::$Format::spmm_plan(analysis, on, units, None).is_some()
                    })+
                }
            }

            /// Largest number of vectors of an SpMM with the plan's own arrays, though a second
            /// packing is faster for more.
            pub(crate) fn most_own_vectors<T: Scalar>(
                &self,
                analysis: &Analysis,
                on: Target,
            ) -> usize {
                let units = self.own_spmm_units(analysis, on);
                units.unwrap_or(usize::MAX).saturating_mul(DeviceVectors::<T>::UNITS[0])
            }

            /// Largest number of units of vectors of an SpMM with the plan's own arrays, if a
            /// second packing is faster for more.
            pub(crate) fn own_spmm_units(&self, analysis: &Analysis, on: Target) -> Option<usize> {
                match self {
                    $(Self::$Format(_) => $module::$Format::own_spmm_units(analysis, on)),+
                }
            }

            /// Time of an SpMV on an H200, in µs: an estimate from exact quantities.
            pub(crate) fn estimate_us(&self, analysis: &Analysis, work: &Work) -> f64 {
                match self {
                    $(Self::$Format(plan) => $module::$Format::estimate_us(plan, analysis, work)),+
                }
            }

            /// Candidate plans of all formats on a kind of device, in registry order.
            #[doc(hidden)]
            pub fn candidates(
                analysis: &Analysis,
                costs: Costs<'_>,
                on: Target,
            ) -> Vec<Self> {
                let mut all = Vec::new();
                $(
                    let plans = $module::$Format::candidates(analysis, costs, on);
                    all.extend(plans.into_iter().map(Self::$Format));
                )+
                all
            }

            /// Packs a matrix.
            pub(crate) fn pack<T: Scalar>(
                &self,
                a: CsrView<'_, T>,
            ) -> Result<Box<dyn HostMatrix<T>>, Error> {
                match self {
                    $(Self::$Format(plan) => Ok(Box::new($module::$Format::pack(plan, a)?))),+
                }
            }

            /// Packs a matrix in GPU memory, on that GPU. None if only the host can pack it.
            pub(crate) fn pack_on_device<T: Scalar>(
                &self,
                source: &CsrSource<T>,
            ) -> Result<Option<Arc<dyn DeviceMatrix<T>>>, Error> {
                match self {
                    $(Self::$Format(plan) => $module::$Format::pack_on_device(plan, source)),+
                }
            }

            fn parse(name: &str, args: &mut PlanArgs<'_>) -> Option<Result<Self, Error>> {
                match name {
                    $(stringify!($module) => {
                        Some($module::$Format::parse(args).map(Self::$Format))
                    })+
                    _ => None,
                }
            }
        }

        /// Any admissible plan.
        #[cfg(test)]
        pub(crate) fn any_plan() -> impl proptest::strategy::Strategy<Value = Plan> {
            use proptest::strategy::{Strategy, Union};
            let texts = [
                $(
                    $module::$Format::any_plan(),
                    crate::testing::any_example($module::$Format::EXAMPLES),
                )+
            ];
            Union::new(texts).prop_map(|text| text.parse().unwrap())
        }

        /// Measurements that the formats make of a matrix themselves.
        const PROBES: &[Option<FormatProbe>] = &[$($module::$Format::PROBE),+];

        impl Display for Plan {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$Format(plan) => write!(f, "{}{plan}", stringify!($module))),+
                }
            }
        }

        #[cfg(test)]
        mod conformance {
            $(crate::testing::format_suite!($module, $Format);)+
        }
    };
}
pub(crate) use registry;
