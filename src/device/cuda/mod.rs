//! NVIDIA GPUs through the CUDA driver. Only the files of this folder use cudarc.

mod api;
mod cache;
mod capture;
mod ceilings;
pub(crate) mod compiler;
mod driver;
mod embedded;
mod event;
mod foreign;
mod fork;
mod graph;
pub(crate) mod host_arrays;
mod launch_gate;
mod memory;
mod nccl;
mod nvrtc;
mod overlap;
mod peer_calls;
mod peers;
mod processes;
mod queue;
mod residence;
mod self_test;
mod staging;
mod target;

pub use cache::Cache as KernelCache;
pub(crate) use fork::Fork;
pub(crate) use graph::Recording;
pub(crate) use host_arrays::HostArrays;
#[cfg(test)]
pub(crate) use memory::copied_bytes;
pub(crate) use memory::{Buffer, Pinned};
pub use nccl::ID_BYTES;
pub(crate) use nccl::Nccl;
pub use peer_calls::PeerCall;
pub(crate) use processes::{MappedMemory, SHARED_WORDS};
pub(crate) use queue::Queue;

use super::{DeviceSpec, GpuRuntime, GpuSpec, Module};
use crate::Error;
use compiler::Effort;
use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};
use driver::Attempt;
use peer_calls::{exclude_calls, holds_lock, inherit_lock};
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt::{self, Debug, Display};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;

/// Lowest compute capability that the kernels support.
const OLDEST: (u32, u32) = (7, 5);

/// Version of the kernels: a hash of their sources.
pub(super) const KERNELS: &str = compiler::KERNEL_HASH;

/// A module and the only kernel in its code; `None` for a whole module.
type CodeKey = (Module, Option<String>);

/// A GPU. Cheap to copy: its context and kernels live as long as the process.
#[derive(Clone, Copy)]
pub struct Gpu(&'static Inner);

struct Inner {
    ordinal: usize,
    context: sys::CUcontext,
    capability: (u32, u32),
    spec: DeviceSpec,
    queue: OnceLock<Queue>,
    queues: Mutex<Vec<Weak<queue::OpenStream>>>,
    /// Loaded code.
    modules: Mutex<HashMap<CodeKey, Loaded>>,
    /// Locks of the code that is being compiled and loaded.
    loading: Mutex<HashMap<CodeKey, Arc<Mutex<()>>>>,
    ceilings: ceilings::MeasuredCeilings,
    /// Buffers of copies to the GPU, and of those from it, which may take place at the same time.
    staging_in: staging::StagingThreads,
    staging_out: staging::StagingThreads,
    gates: launch_gate::LaunchGates,
    peer_pool: peers::PeerPool,
    /// Working memory that is not used.
    spare: Mutex<Vec<Buffer<u8>>>,
    /// Memory for host arrays that is not used.
    host_arrays: Mutex<Option<host_arrays::HostArrayMemory>>,
}

// SAFETY: the driver allows a context and its modules to be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Guard during which calls of this thread go to the context of a GPU. Restores the previous
/// context on drop.
struct Current(Option<sys::CUcontext>);

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: this context was current before.
            let _ = unsafe { api::ctx_set_current(before) };
        }
    }
}

/// A loaded module of machine code; never unloaded.
#[derive(Clone, Copy)]
struct Loaded {
    handle: sys::CUmodule,
    overlaps: bool,
}

/// A compiled kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    function: sys::CUfunction,
    /// True if the kernel itself waits for the previous launch (programmatic dependent launch), so
    /// that it may begin while that launch ends.
    overlaps: bool,
}

// SAFETY: the driver allows a function to be launched from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Looks for the driver, NVRTC and the cache of kernels.
pub(super) fn runtime() -> GpuRuntime {
    let modules = embedded::MODULES.iter().map(|module| (module.name, module.targets()));
    GpuRuntime {
        driver: driver::version().map(|(major, minor)| format!("CUDA {major}.{minor}")),
        nvrtc: nvrtc::library().map(nvrtc::Nvrtc::name).map_err(str::to_owned),
        embedded: modules.collect(),
        cache: cache::Cache::of_user().map(|cache| cache.folder().to_owned()),
    }
}

/// Returns the number of GPUs, or the reason why none can be used.
pub(super) fn count() -> Result<usize, String> {
    driver::version()?;
    match driver::count().map_err(driver::text)? {
        0 => Err("the NVIDIA driver finds no GPU".to_owned()),
        count => Ok(count),
    }
}

/// Opens GPU number `n`, or returns the reason why it cannot be used.
pub(super) fn open(n: usize) -> Result<Gpu, String> {
    static OPEN: Mutex<Vec<Gpu>> = Mutex::new(Vec::new());
    let count = count()?;
    if n >= count {
        let plural = if count == 1 { "" } else { "s" };
        return Err(format!(
            "there {} {count} GPU{plural}, numbered from 0",
            if count == 1 { "is" } else { "are" }
        ));
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = open.iter().find(|gpu| gpu.0.ordinal == n) {
        return Ok(*gpu);
    }
    let gpu = create(n)?;
    open.push(gpu);
    Ok(gpu)
}

fn create(ordinal: usize) -> Result<Gpu, String> {
    let device = driver::device(ordinal).map_err(driver::text)?;
    let attribute = |which| driver::attribute(device, which).map(|value| value as u32);
    let name = driver::name(device).map_err(driver::text)?;
    let capability = (
        attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    if capability < OLDEST {
        return Err(format!(
            "{name} has compute capability {}.{}, and {}.{} is needed",
            capability.0, capability.1, OLDEST.0, OLDEST.1
        ));
    }
    // SAFETY: the device was returned by the driver; the function writes one number.
    let memory = api::value(0, |bytes| unsafe { api::device_total_mem(bytes, device) });
    let spec = DeviceSpec {
        name,
        instructions: format!("sm_{}{}", capability.0, capability.1),
        threads: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        gpu: Some(GpuSpec {
            l2_bytes: u64::from(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            memory_bytes: memory.map_err(driver::text)? as u64,
            driver: driver::version().map(|(major, minor)| format!("{major}.{minor}"))?,
        }),
    };
    // SAFETY: as above.
    let context =
        api::value(ptr::null_mut(), |context| unsafe { api::primary_ctx_retain(context, device) })
            .map_err(driver::text)?;
    let gpu = Gpu(Box::leak(Box::new(Inner {
        ordinal,
        context,
        capability,
        spec,
        queue: OnceLock::new(),
        queues: Mutex::default(),
        modules: Mutex::default(),
        loading: Mutex::default(),
        ceilings: ceilings::MeasuredCeilings::default(),
        staging_in: staging::StagingThreads::default(),
        staging_out: staging::StagingThreads::default(),
        gates: launch_gate::LaunchGates::default(),
        peer_pool: peers::PeerPool::default(),
        spare: Mutex::default(),
        host_arrays: Mutex::default(),
    })));
    let bound = gpu.bind().map_err(|e| e.to_string());
    let queue =
        bound.and_then(|_current| Queue::create(gpu).map_err(driver::text)).inspect_err(|_| {
            // SAFETY: retained above, and no other code has the GPU yet. If this also fails, the
            // first error is the one to report.
            let _ = unsafe { api::primary_ctx_release(device) };
        })?;
    gpu.0.queue.set(queue).expect("a fresh GPU has no queue yet");
    Ok(gpu)
}

impl Gpu {
    /// Device ordinal.
    #[doc(hidden)]
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// Number of multiprocessors.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.0.spec.threads
    }

    /// Compute capability.
    pub(crate) fn capability(&self) -> (u32, u32) {
        self.0.capability
    }

    pub(super) fn spec(&self) -> DeviceSpec {
        self.0.spec.clone()
    }

    /// Makes the context of the GPU current for this thread, until the guard is dropped.
    fn bind(&self) -> Result<Current, Error> {
        let attempt = || "use its context".to_owned();
        // SAFETY: the function writes the context, null if there is none.
        let before =
            api::value(ptr::null_mut(), |context| unsafe { api::ctx_get_current(context) })
                .attempt(self.0.ordinal, attempt)?;
        if before == self.0.context {
            return Ok(Current(None));
        }
        // SAFETY: the context is retained as long as the process runs.
        let bound = unsafe { api::ctx_set_current(self.0.context) };
        // A thread without a context keeps this one: switching back and forth takes longer than a
        // launch.
        bound
            .attempt(self.0.ordinal, attempt)
            .map(|()| Current((!before.is_null()).then_some(before)))
    }

    /// The default queue.
    pub(crate) fn queue(&self) -> &'static Queue {
        self.0.queue.get().expect("set when the GPU was opened")
    }

    /// All living queues, and some that have been dropped.
    fn queues(&self) -> MutexGuard<'_, Vec<Weak<queue::OpenStream>>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Size of the L2 cache, in bytes.
    pub(crate) fn l2_bytes(&self) -> u64 {
        self.0.spec.gpu.as_ref().map_or(0, |gpu| gpu.l2_bytes)
    }

    /// Compiles all kernels for this GPU; see [`Device::compile_kernels`](super::Device).
    pub(crate) fn compile_kernels(
        &self,
        done: impl Fn(usize, usize) + Sync,
    ) -> Result<usize, Error> {
        compiler::compile_all(self.0.capability, done)
    }

    /// Returns kernel `name` of a module, compiled for this GPU.
    pub(crate) fn kernel(&self, module: impl Into<Module>, name: &str) -> Result<Kernel, Error> {
        let module = module.into();
        // The driver loads a module when it is first used, and a kernel when it is looked up.
        let _outside = exclude_calls();
        let loaded = self.code_with(module, name)?;
        let symbol = CString::new(name).expect("names of kernels hold no NUL");
        // A module loaded earlier may be queried by a thread that has no context yet.
        let _current = self.bind()?;
        // SAFETY: the module is loaded.
        let function = api::value(ptr::null_mut(), |function| unsafe {
            api::module_get_function(function, loaded.handle, symbol.as_ptr())
        });
        let function = function
            .attempt(self.0.ordinal, || format!("find the kernel {name} of {}.cu", module.file))?;
        Ok(Kernel { function, overlaps: loaded.overlaps && driver::instances() == 1 })
    }

    /// Runs `work`. Those of `kernels` that are neither loaded nor cached are unpacked or compiled
    /// on other threads meanwhile.
    pub(crate) fn with_kernels<R>(
        &self,
        kernels: Vec<(Module, String)>,
        work: impl FnOnce() -> R,
    ) -> R {
        let is_missing = |(module, name): &(Module, String)| {
            self.loaded(*module, name).is_none()
                && compiler::effort(self.0.capability, *module, name) != Effort::None
        };
        let missing = kernels.into_iter().filter(is_missing);
        thread::scope(|scope| {
            let holds = holds_lock();
            for (module, name) in missing {
                let compile = move || inherit_lock(holds, || drop(self.code_with(module, &name)));
                // Without a thread, and after a failure, it is loaded when it is first used.
                let _ = thread::Builder::new().spawn_scoped(scope, compile);
            }
            work()
        })
    }

    /// True if none of `kernels` has to be compiled.
    pub(crate) fn needs_no_compiler(&self, kernels: &[(Module, String)]) -> bool {
        kernels.iter().all(|(module, name)| {
            self.loaded(*module, name).is_some()
                || compiler::effort(self.0.capability, *module, name) != Effort::Compilation
        })
    }

    /// True if code with kernel `name` of a module is loaded.
    #[cfg(test)]
    pub(crate) fn is_loaded(&self, module: Module, name: &str) -> bool {
        self.loaded(module, name).is_some()
    }

    /// Loaded code with kernel `name` of a module, if there is any.
    fn loaded(&self, module: Module, name: &str) -> Option<Loaded> {
        let modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let known = [None, Some(name.to_owned())];
        known.into_iter().find_map(|kernel| modules.get(&(module, kernel)).copied())
    }

    /// Loaded code with kernel `name` of a module, which is compiled if necessary.
    fn code_with(&self, module: Module, name: &str) -> Result<Loaded, Error> {
        if let Some(loaded) = self.loaded(module, name) {
            return Ok(loaded);
        }
        let _outside = exclude_calls();
        // Threads that need the same code wait for the first.
        let alone = compiler::are_compiled_alone(self.0.capability, module);
        let unit = (module, alone.then(|| name.to_owned()));
        let lock = {
            let mut loading = self.0.loading.lock().unwrap_or_else(PoisonError::into_inner);
            loading.entry(unit).or_default().clone()
        };
        let _lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = self.loaded(module, name) {
            return Ok(loaded);
        }
        let _current = self.bind()?;
        let _relaxed = memory::Relaxed::new();
        let load = |image: compiler::Image| {
            let code = image.bytes();
            // SAFETY: a complete CUBIN, or PTX of NVRTC that ends in NUL.
            let handle = api::value(ptr::null_mut(), |handle| unsafe {
                api::module_load_data(handle, code.as_ptr().cast())
            });
            if handle.is_err_and(|error| error.is_refusal()) {
                image.discard();
            }
            let handle = handle
                .attempt(self.0.ordinal, || format!("load the kernels of {}.cu", module.file))?;
            let overlaps = overlap::is_marked(code);
            Ok((image.kernel().map(str::to_owned), Loaded { handle, overlaps }))
        };
        let capability = self.0.capability;
        let image = compiler::image(capability, module, name)?;
        // A driver older than the compiler of the embedded code may reject it, but not code
        // compiled on this machine.
        let (kernel, loaded) = load(image).or_else(|refused| {
            compiler::image_without_embedded(capability, module, name)
                .and_then(load)
                .map_err(|_| refused)
        })?;
        let mut modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
        modules.insert((module, kernel), loaded);
        Ok(loaded)
    }
}

impl PartialEq for Gpu {
    fn eq(&self, other: &Self) -> bool {
        self.0.ordinal == other.0.ordinal
    }
}

impl Eq for Gpu {}

impl Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cuda:{}", self.0.ordinal)
    }
}
