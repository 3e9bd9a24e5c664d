//! NVIDIA GPUs through the CUDA driver; the only place, with its neighbours in this folder, that names cudarc.

mod cache;
mod ceilings;
pub(crate) mod compiler;
mod driver;
mod embedded;
mod event;
mod foreign;
mod graph;
mod hold;
mod memory;
mod nvrtc;
mod overlap;
mod queue;
mod residence;
mod target;

pub(crate) use graph::Recording;
pub(crate) use memory::{Buffer, Pinned};
pub(crate) use queue::Queue;

use super::{DeviceSpec, GpuSpec, Launch, Module};
use crate::Error;
use cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};
use cudarc::driver::{result, sys};
use driver::Attempt;
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt::{self, Debug, Display};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// The least compute capability the kernels are written for.
const OLDEST: (u32, u32) = (7, 0);

/// The version of the kernels: a hash of their sources.
pub(super) const KERNELS: &str = compiler::KERNEL_HASH;

/// A GPU. Cheap to copy: its context and its kernels live as long as the program.
#[derive(Clone, Copy)]
pub struct Gpu(&'static Inner);

struct Inner {
    ordinal: usize,
    context: sys::CUcontext,
    capability: (u32, u32),
    spec: DeviceSpec,
    queue: OnceLock<Queue>,
    queues: Mutex<Vec<Weak<queue::Shared>>>,
    modules: Mutex<HashMap<Module, Loaded>>,
    ceilings: ceilings::Measured,
}

// SAFETY: the driver allows a context and its modules to be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// While it lives, calls of this thread go to a GPU's context; afterwards again to the one before.
struct Current(Option<sys::CUcontext>);

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: it was current before.
            let _ = unsafe { result::ctx::set_current(before) };
        }
    }
}

/// Machine code that was loaded; never unloaded.
#[derive(Clone, Copy)]
struct Loaded {
    handle: sys::CUmodule,
    overlaps: bool,
}

/// A compiled kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    function: sys::CUfunction,
    /// Whether it waits by itself for the launch before it, and so may begin while that one ends.
    overlaps: bool,
}

// SAFETY: the driver allows a function to be launched from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// How many GPUs there are, or why none can be used.
pub(super) fn count() -> Result<usize, String> {
    driver::version()?;
    match result::device::get_count().map_err(driver::text)? {
        n @ 1.. => Ok(n as usize),
        _ => Err("the NVIDIA driver finds no GPU".to_owned()),
    }
}

/// GPU number `n`, or why it cannot be used.
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
    // A device count fits an int.
    let device = result::device::get(ordinal as i32).map_err(driver::text)?;
    let attribute = |which| driver::attribute(device, which).map(|value| value as u32);
    let name = result::device::get_name(device).map_err(driver::text)?;
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
    // SAFETY: the device is one that the driver named.
    let memory = unsafe { result::device::total_mem(device) }.map_err(driver::text)?;
    let spec = DeviceSpec {
        name,
        instructions: format!("sm_{}{}", capability.0, capability.1),
        threads: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        gpu: Some(GpuSpec {
            l2_bytes: u64::from(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            memory_bytes: memory as u64,
            driver: driver::version().map(|(major, minor)| format!("{major}.{minor}"))?,
        }),
    };
    // SAFETY: as above.
    let context = unsafe { result::primary_ctx::retain(device) }.map_err(driver::text)?;
    let gpu = Gpu(Box::leak(Box::new(Inner {
        ordinal,
        context,
        capability,
        spec,
        queue: OnceLock::new(),
        queues: Mutex::default(),
        modules: Mutex::default(),
        ceilings: ceilings::Measured::default(),
    })));
    let bound = gpu.bind().map_err(|e| e.to_string());
    let queue = bound.and_then(|_current| Queue::create(gpu).map_err(driver::text)).inspect_err(|_| {
        // SAFETY: retained above, and nobody has seen the GPU yet. If this fails too, the first failure is the one to tell.
        let _ = unsafe { result::primary_ctx::release(device) };
    })?;
    gpu.0.queue.set(queue).expect("a fresh GPU has no queue yet");
    Ok(gpu)
}

impl Gpu {
    /// Its number.
    #[doc(hidden)]
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// Its multiprocessors.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.0.spec.threads
    }

    /// Its compute capability.
    pub(crate) fn capability(&self) -> (u32, u32) {
        self.0.capability
    }

    pub(super) fn spec(&self) -> DeviceSpec {
        self.0.spec.clone()
    }

    /// Makes its context the one that this thread's calls go to, until the guard is dropped.
    fn bind(&self) -> Result<Current, Error> {
        let attempt = || "use its context".to_owned();
        let before = result::ctx::get_current().attempt(self.0.ordinal, attempt)?;
        if before == Some(self.0.context) {
            return Ok(Current(None));
        }
        // SAFETY: the context is retained as long as the program runs.
        let bound = unsafe { result::ctx::set_current(self.0.context) };
        // A thread that had none keeps this one: changing to and fro takes longer than a launch.
        bound.attempt(self.0.ordinal, attempt).map(|()| Current(before))
    }

    /// The queue that is used where none is given.
    pub(crate) fn queue(&self) -> &'static Queue {
        self.0.queue.get().expect("set when the GPU was opened")
    }

    /// Every living queue, and some that are no more.
    fn queues(&self) -> MutexGuard<'_, Vec<Weak<queue::Shared>>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of its L2 cache.
    pub(crate) fn l2_bytes(&self) -> u64 {
        self.0.spec.gpu.as_ref().map_or(0, |gpu| gpu.l2_bytes)
    }

    /// The kernel `name` of a module, compiled for it.
    pub(crate) fn kernel(&self, module: impl Into<Module>, name: &str) -> Result<Kernel, Error> {
        let module = module.into();
        let loaded = self.module(module)?;
        let symbol = CString::new(name).expect("names of kernels hold no NUL");
        // What was loaded before may be looked at by a thread that has no context yet.
        let _current = self.bind()?;
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(loaded.handle, symbol) };
        let function =
            function.attempt(self.0.ordinal, || format!("find the kernel {name} of {}.cu", module.file))?;
        Ok(Kernel { function, overlaps: loaded.overlaps })
    }

    fn module(&self, name: Module) -> Result<Loaded, Error> {
        let mut modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(&name) {
            return Ok(*module);
        }
        let _current = self.bind()?;
        let _relaxed = memory::Relaxed::new();
        let load = |image: compiler::Image| {
            // SAFETY: a whole CUBIN, or PTX that ends in NUL.
            let module = unsafe { result::module::load_data(image.bytes().as_ptr().cast()) };
            let handle =
                module.attempt(self.0.ordinal, || format!("load the kernels of {}.cu", name.file))?;
            // SAFETY: it has just been loaded.
            Ok(Loaded { handle, overlaps: unsafe { overlap::is_marked(handle) } })
        };
        let module = load(compiler::image(self.0.capability, name)?).or_else(|refused| {
            // A driver older than the compiler of the build may refuse what is built in, but not what this machine compiles.
            compiler::image_without_embedded(self.0.capability, name).and_then(load).map_err(|_| refused)
        })?;
        modules.insert(name, module);
        Ok(module)
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

impl Kernel {
    fn function(self) -> sys::CUfunction {
        self.function
    }

    /// Enqueues a launch; nothing for a grid without blocks.
    ///
    /// # Safety
    ///
    /// The parameters are those of the kernel, and what they point to lives until it is done.
    pub(crate) unsafe fn launch(&self, queue: &Queue, launch: Launch) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { queue.launch(*self, launch) }
    }
}
