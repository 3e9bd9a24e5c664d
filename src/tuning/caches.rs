//! Batches of products in a state of the caches.

pub use super::cache_state::CacheState;
use super::stopwatch::time_batch;
use crate::Error;
use crate::device::fused::{Code, Coefficient, Combine, Dots, Passes, Program};
use crate::device::{Device, DeviceVec, Stream};
use std::cell::RefCell;

/// Times batches of products on one stream in one [`CacheState`].
#[derive(Debug)]
pub struct Caches {
    state: CacheState,
    stream: Stream,
    /// `None` if the cache is not filled.
    filling: Option<RefCell<Filling>>,
}

/// Data that fill the cache.
#[derive(Debug)]
struct Filling {
    passes: Passes<f32>,
    data: DeviceVec<f32>,
}

impl Caches {
    /// Creates a timer for batches on `stream` in the given state.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] if the GPU has no room for the other data, twice its L2; [`Error::Gpu`]
    /// and [`Error::KernelCompile`] if they cannot be read and written.
    pub fn new(stream: &Stream, state: CacheState) -> Result<Self, Error> {
        let filling = match state {
            CacheState::Warm => None,
            CacheState::Company | CacheState::Cold => Some(RefCell::new(Filling::new(stream)?)),
        };
        Ok(Self { state, stream: stream.clone(), filling })
    }

    /// The stream of the products.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The cache state before a product.
    pub fn state(&self) -> CacheState {
        self.state
    }

    /// Seconds of `products` products in this state. `product` enqueues one product on the stream.
    ///
    /// # Errors
    ///
    /// The first error of `product`; [`Error::Gpu`] if the GPU fails.
    pub fn batch(
        &self,
        products: u32,
        mut product: impl FnMut() -> Result<(), Error>,
    ) -> Result<f64, Error> {
        let fill = || self.filling.as_ref().map_or(Ok(()), |filling| filling.borrow_mut().pass());
        self.state
            .batch(products, fill, |products| time_batch(&self.stream, products, &mut product))
    }
}

impl Filling {
    fn new(stream: &Stream) -> Result<Self, Error> {
        let device = stream.device();
        let len = filling_bytes(&device) as usize / size_of::<f32>();
        let passes = Passes::new(stream, 0, Code::new())?;
        Ok(Self { passes, data: DeviceVec::zeros(&device, len)? })
    }

    /// Writes all of the data, then reads all of it, by the loads and stores of ordinary vector
    /// operations: their cache lines have the normal priority. After the reading pass nearly all
    /// lines are clean, so that the batch does not include the time of writing them back.
    fn pass(&mut self) -> Result<(), Error> {
        /// Register of the unused sum, beyond the reserved ones.
        const SUM: u16 = 8;
        let keep = Some(Coefficient::ONE);
        self.passes.combine(&mut self.data, Combine { keep, ..Combine::new() })?;
        let (of, then) = (&self.data, Program::default());
        self.passes.dots(Dots { of, with: None, and: None, at: SUM, then, backward: false })
    }
}

/// Bytes that evict a product's data from the last-level cache of a device.
fn filling_bytes(device: &Device) -> u64 {
    /// Size of the filling over that of the cache; caches do not replace strictly the oldest line.
    const TIMES: u64 = 2;
    /// Largest filling on a CPU, in bytes. Virtual machines report the cache of a whole package, of
    /// which a core can use a part.
    const CPU_LIMIT: u64 = 256 << 20;
    let bytes = device.last_cache_bytes().saturating_mul(TIMES);
    if *device == Device::Cpu { bytes.min(CPU_LIMIT) } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::super::stopwatch::{Policy, time_interleaved};
    use super::*;
    use CacheState::{Cold, Company, Warm};

    /// Calls of a timing run of two engines, `a` and `b`, of 4 seconds per product: `f` fills the
    /// cache, the letter of an engine is a product of it, a dot ends a timed batch.
    fn calls(state: CacheState) -> String {
        let calls = RefCell::new(String::new());
        let engine = |name: char| {
            let calls = &calls;
            move |products| {
                let fill = || {
                    calls.borrow_mut().push('f');
                    Ok(())
                };
                let time = |products: u32| {
                    (0..products).for_each(|_| calls.borrow_mut().push(name));
                    calls.borrow_mut().push('.');
                    Ok(4.0 * f64::from(products))
                };
                state.batch(products, fill, time)
            }
        };
        let (mut a, mut b) = (engine('a'), engine('b'));
        let policy =
            Policy { warmup: 0, min_rounds: 2, max_rounds: 2, seconds: 1e9, ..Policy::default() };
        let policy = policy.in_state(state);
        let samples = time_interleaved(&mut [&mut a, &mut b], policy);
        assert!(
            samples.iter().all(|s| s.as_ref().unwrap().as_slice() == [4.0, 4.0]),
            "{samples:?}"
        );
        calls.into_inner()
    }

    #[test]
    fn a_warm_batch_follows_warm_up_products() {
        assert_eq!(calls(Warm), "aaa.a.bbb.b.".repeat(2));
    }

    #[test]
    fn a_batch_in_company_follows_a_filling_and_nothing_else() {
        assert_eq!(calls(Company), "fa.fb.".repeat(2));
        assert_eq!(order_of_three(Company), "fppp.");
    }

    #[test]
    fn the_cache_is_filled_before_every_cold_product() {
        assert_eq!(calls(Cold), "fa.fb.".repeat(2));
        assert_eq!(order_of_three(Cold), "fp.fp.fp.");
    }

    /// Calls for a batch of three products.
    fn order_of_three(state: CacheState) -> String {
        let order = RefCell::new(String::new());
        let fill = || {
            order.borrow_mut().push('f');
            Ok(())
        };
        let time = |products: u32| {
            order.borrow_mut().push_str(&"p".repeat(products as usize));
            order.borrow_mut().push('.');
            Ok(f64::from(products))
        };
        assert_eq!(state.batch(3, fill, time).unwrap(), 3.0);
        order.into_inner()
    }

    #[test]
    fn failed_plans_are_not_timed() {
        let failure = || Error::CopyLength { expected: 1, found: 2 };
        for state in [Company, Cold] {
            let failed = state.batch(2, || Err(failure()), |_| panic!("the cache is not filled"));
            assert_eq!(failed.unwrap_err().to_string(), failure().to_string());
        }
    }

    #[test]
    fn products_are_timed_in_every_state_of_a_device() {
        for device in [Device::Cpu].into_iter().chain(Device::gpus()) {
            let stream = Stream::new(&device).unwrap();
            for state in [Warm, Company, Cold] {
                let caches = Caches::new(&stream, state).unwrap();
                let mut products = 0;
                let product = || {
                    products += 1;
                    Ok(())
                };
                let seconds = caches.batch(3, product).unwrap();
                assert!(products == 3 && seconds >= 0.0 && caches.state() == state);
                let filled = caches.filling.map_or(0, |filling| filling.borrow().data.len());
                let expected = if state == Warm { 0 } else { filling_bytes(&device) / 4 };
                assert_eq!(filled as u64, expected);
            }
        }
    }
}
