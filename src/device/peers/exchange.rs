//! Exchange of the elements that parts need of each other: launches of kernels/peers.cu.

use super::constants::NEIGHBOUR;
use super::network::Message;
use super::{PeerGroup, PeerPlace};
use crate::device::{
    BLOCK, Buffer, Device, DeviceVec, Gpu, Kernel, Launch, Ptr, Queue, Stream, kernels,
};
use crate::{Error, Scalar};
use std::ops::Range;
use std::sync::Arc;

/// Largest number of blocks of a launch that places products.
const PLACE_BLOCKS: usize = 1 << 10;

/// Elements that a thread of an exchange copies, if one block for each multiprocessor does not
/// suffice, and largest number of blocks for each.
const COPIED: usize = 8;
const EXCHANGE_BLOCKS: usize = 4;

/// Memory of a part that its neighbours write to: elements of two rounds, and a flag for each
/// neighbour. From a network it receives those of one round.
#[derive(Debug)]
pub struct PeerInbox<T: Scalar> {
    group: Arc<PeerGroup>,
    rank: usize,
    elements: Arc<Buffer<T>>,
    flags: Arc<Buffer<u32>>,
    received: usize,
}

/// A part that another one sends elements to.
#[derive(Debug, Clone, Default)]
pub struct Neighbour {
    /// Its number.
    pub rank: usize,
    /// Own elements that it needs.
    pub elements: Vec<u32>,
    /// Elements of the own inbox that it sends.
    pub received: Range<usize>,
    /// Address of their place in its inbox.
    pub place: u64,
    /// Elements of half its inbox.
    pub half: u64,
    /// Address of its flag for this part.
    pub flag: u64,
}

/// Elements that the boundary rows of a part use.
#[derive(Debug, Clone, Default)]
pub struct UsedElements {
    /// Own elements among them.
    pub own: Vec<u32>,
    /// Position of the own elements; those of neighbours are before and behind.
    pub own_place: usize,
    /// Place of every element in the vector that the rows read; none if they are consecutive.
    pub places: Vec<u32>,
    /// Length of this vector.
    pub len: usize,
}

/// Exchange of elements of `count` interleaved vectors with the neighbours of a part.
#[derive(Debug)]
pub struct PeerExchange<T: Scalar> {
    inbox: PeerInbox<T>,
    /// Memory that a network sends from, and its messages.
    outbox: Arc<Buffer<T>>,
    messages: [Vec<Message>; 2],
    gpu: Gpu,
    send: Kernel,
    receive: Kernel,
    count: usize,
    neighbours: usize,
    table: Arc<Buffer<u64>>,
    elements: Arc<Buffer<u32>>,
    own: Arc<Buffer<u32>>,
    own_place: usize,
    places: Arc<Buffer<u32>>,
    used_len: usize,
    /// Least number of elements of a vector.
    least: usize,
    state: Arc<Buffer<u32>>,
    /// Word of the host that counts the rounds; null without a network.
    completed: Ptr<u32>,
}

/// Places of products in the vector of a part.
#[derive(Debug)]
pub struct RowPlaces {
    kernels: [Kernel; 2],
    rows: Arc<Buffer<u32>>,
    /// Least number of elements of a vector.
    least: usize,
}

impl<T: Scalar> PeerInbox<T> {
    /// Creates the inbox of a part, with room for `received` elements from all its neighbours.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] and [`Error::Gpu`].
    pub fn new(
        group: &Arc<PeerGroup>,
        rank: usize,
        received: usize,
        neighbours: usize,
    ) -> Result<Self, Error> {
        let rounds = if group.is_network() { 1 } else { 2 };
        let elements = group.memory(rank, rounds * received)?;
        let flags = group.words(rank, neighbours)?;
        Ok(Self { group: group.clone(), rank, elements, flags, received })
    }

    /// Places of the elements, and of the flags.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if other processes cannot access them.
    pub fn places(&self) -> Result<[PeerPlace; 2], Error> {
        Ok([self.group.place_of(&self.elements)?, self.group.place_of(&self.flags)?])
    }
}

impl<T: Scalar> PeerExchange<T> {
    /// Creates the exchange of a part that sends to `neighbours`, in the order of its flags, and
    /// whose boundary rows use the elements `used`. Before the first round all parts
    /// [connect](Self::connect).
    ///
    /// # Safety
    ///
    /// The addresses are those of inboxes of the same group, with room for the elements; they are
    /// not used in a network. The parts agree on the elements that they send and receive. Places
    /// are below `used.len`, which is at least the number of elements.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`], [`Error::Gpu`] and [`Error::KernelCompile`].
    pub unsafe fn new(
        inbox: PeerInbox<T>,
        neighbours: &[Neighbour],
        used: UsedElements,
        count: usize,
    ) -> Result<Self, Error> {
        let UsedElements { own, own_place, places, len } = used;
        let gpu = *inbox.group.gpu(inbox.rank);
        let kernel = |name: &str| gpu.kernel("peers", &format!("peers_{name}_{}", T::KIND));
        let network = inbox.group.network();
        let [begun, completed] = inbox.group.counted_rounds()?;
        let sent: usize = neighbours.iter().map(|neighbour| neighbour.elements.len()).sum();
        let outbox = inbox.group.memory(inbox.rank, network.map_or(0, |_| sent * count))?;
        let (mut table, mut elements, mut messages) = (Vec::new(), Vec::new(), [vec![], vec![]]);
        for neighbour in neighbours {
            let bytes = |buffer: &Buffer<T>, elements: Range<usize>| {
                let address = |element: usize| buffer.ptr().add(element * count).address();
                address(elements.start)..address(elements.end)
            };
            let own = elements.len()..elements.len() + neighbour.elements.len();
            elements.extend_from_slice(&neighbour.elements);
            let [place, half, flag] = match network {
                None => [neighbour.place, neighbour.half, neighbour.flag],
                Some(_) => {
                    let (sent, received) = (bytes(&outbox, own), neighbour.received.clone());
                    let place = sent.start;
                    let both = [sent, bytes(&inbox.elements, received)];
                    for (messages, bytes) in messages.iter_mut().zip(both) {
                        messages.extend((!bytes.is_empty()).then_some((neighbour.rank, bytes)));
                    }
                    [place, 0, begun.address()]
                }
            };
            let words: [u64; NEIGHBOUR] = [elements.len() as u64, place, half, flag];
            table.extend(words);
        }
        Ok(Self {
            outbox,
            messages,
            gpu,
            send: kernel("send")?,
            receive: kernel("receive")?,
            count,
            neighbours: neighbours.len(),
            table: Arc::new(gpu.upload(&table)?),
            elements: Arc::new(gpu.upload(&elements)?),
            own: Arc::new(gpu.upload(&own)?),
            own_place,
            places: Arc::new(gpu.upload(&places)?),
            used_len: len,
            least: elements.iter().chain(&own).max().map_or(0, |&last| last as usize + 1),
            state: inbox.group.words(inbox.rank, 2)?,
            completed,
            inbox,
        })
    }

    /// Connects the part to its neighbours in a network. All parts call it at the same time.
    ///
    /// # Errors
    ///
    /// [`Error::Communication`] and [`Error::Gpu`].
    pub fn connect(&self) -> Result<(), Error> {
        // SAFETY: the ranges are of memory of the group.
        unsafe { self.inbox.group.connect(&self.messages) }
    }

    /// Enqueues the messages to the neighbours, with elements of `x`.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`]; in a network [`Error::Communication`].
    pub fn send(&self, stream: &Stream, x: &DeviceVec<T>) -> Result<(), Error> {
        let Some(queue) = stream.queue().filter(|_| self.neighbours > 0) else { return Ok(()) };
        assert!(x.len() >= self.least * self.count, "the elements exist");
        let _lock = queue.lock()?;
        self.keep(queue, x);
        let launch = self.grid(self.elements.len(), EXCHANGE_BLOCKS).with(kernels::peers::Send {
            x: x.ptr(),
            elements: self.elements.ptr(),
            count: self.count as u32,
            table: self.table.ptr(),
            neighbours: self.neighbours as u32,
            state: self.state.ptr(),
        });
        // SAFETY: the kernel is `peers_send`; places in inboxes are the promise of `new`, which has
        // the messages from its own memory.
        unsafe {
            self.send.launch(queue, launch)?;
            match self.inbox.group.network() {
                Some(network) => network.exchange(queue, &self.messages),
                None => Ok(()),
            }
        }
    }

    /// Enqueues waiting for the neighbours, whose elements are written to `used` with those of `x`.
    /// `beside` is true if other work runs meanwhile, whose multiprocessors are not taken.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`].
    pub fn receive(
        &self,
        stream: &Stream,
        x: &DeviceVec<T>,
        used: &mut DeviceVec<T>,
        beside: bool,
    ) -> Result<(), Error> {
        let Some(queue) = stream.queue() else { return Ok(()) };
        let received = self.inbox.received / self.count;
        if self.neighbours == 0 && self.own.len() == 0 {
            return Ok(());
        }
        assert!(x.len() >= self.least * self.count, "the elements exist");
        assert!(used.len() == self.used_len * self.count, "a place for each element");
        let _lock = queue.lock()?;
        self.keep(queue, x);
        self.keep(queue, used);
        let (ended, limit) = self.inbox.group.waits();
        // The network has the elements of one round, and nothing to wait for.
        let is_network = self.inbox.group.is_network();
        let (half, neighbours) =
            if is_network { (0, 0) } else { (self.inbox.received, self.neighbours) };
        let most = if beside && !is_network { 1 } else { EXCHANGE_BLOCKS };
        let elements = received.max(self.own.len());
        let launch = self.grid(elements, most).with(kernels::peers::Receive {
            used: used.ptr(),
            x: x.ptr(),
            own: self.own.ptr(),
            own_count: self.own.len() as u64,
            own_place: self.own_place as u64,
            places: if self.places.len() == 0 { Ptr::NULL } else { self.places.ptr() },
            inbox: self.inbox.elements.ptr(),
            received: received as u64,
            half: half as u64,
            count: self.count as u32,
            flags: self.inbox.flags.ptr(),
            neighbours: neighbours as u32,
            state: self.state.ptr(),
            completed: self.completed,
            ended,
            limit,
        });
        // SAFETY: the kernel is `peers_receive`; `used` has a place for each element.
        unsafe { self.receive.launch(queue, launch) }
    }

    /// Grid for a number of elements of each vector, with at most `most` blocks for each
    /// multiprocessor.
    fn grid(&self, elements: usize, most: usize) -> Launch {
        let (numbers, all) = (elements * self.count, self.gpu.multiprocessors());
        let blocks =
            |copied: usize, most: usize| numbers.div_ceil(BLOCK as usize * copied).min(most);
        let blocks = blocks(1, all).max(blocks(COPIED, most * all));
        Launch::new(blocks.max(1) as u32, BLOCK)
    }

    /// Keeps the memory of a launch alive as long as the graph that is being captured, if any.
    fn keep(&self, queue: &Queue, vector: &DeviceVec<T>) {
        if !queue.records() {
            return;
        }
        vector.share().into_iter().for_each(|memory| queue.keep(memory));
        queue.keep(self.inbox.group.clone());
        queue.keep(self.table.clone());
        queue.keep(self.outbox.clone());
        for words in [&self.elements, &self.own, &self.places, &self.state] {
            queue.keep(words.clone());
        }
    }
}

impl RowPlaces {
    /// Places of the products of some rows, by their numbers.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceUnavailable`] on the CPU; [`Error::GpuMemory`], [`Error::Gpu`] and
    /// [`Error::KernelCompile`].
    pub fn new(device: &Device, rows: &[u32]) -> Result<Self, Error> {
        let Device::Cuda(gpu) = device else {
            let reason = "places of rows are for GPUs".to_owned();
            return Err(Error::DeviceUnavailable { device: device.to_string(), reason });
        };
        let kernel = |kind| gpu.kernel("peers", &format!("peers_place_{kind}"));
        let least = rows.iter().max().map_or(0, |&last| last as usize + 1);
        let (kernels, rows) = ([kernel("f32")?, kernel("f64")?], Arc::new(gpu.upload(rows)?));
        Ok(Self { kernels, rows, least })
    }

    /// Enqueues `y[rows[i]] = products[i]` for `count` interleaved vectors.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`].
    pub fn place<T: Scalar>(
        &self,
        stream: &Stream,
        products: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
        count: usize,
    ) -> Result<(), Error> {
        let elements = self.rows.len() * count;
        assert!(products.len() == elements, "a product for every row");
        assert!(y.len() >= self.least * count, "the rows exist");
        let Some(queue) = stream.queue().filter(|_| elements > 0) else { return Ok(()) };
        let _lock = queue.lock()?;
        if queue.records() {
            let vectors = [products.share(), y.share()];
            vectors.into_iter().flatten().for_each(|memory| queue.keep(memory));
            queue.keep(self.rows.clone());
        }
        let blocks = elements.div_ceil(BLOCK as usize).min(PLACE_BLOCKS);
        let launch = Launch::new(blocks as u32, BLOCK).with(kernels::peers::Place {
            y: y.ptr(),
            rows: self.rows.ptr(),
            products: products.ptr(),
            elements: elements as u64,
            count: count as u32,
        });
        // SAFETY: the kernel is `peers_place`; the caller has the rows of a part, and its vector.
        unsafe {
            self.kernels[usize::from(T::KIND == crate::ScalarKind::F64)].launch(queue, launch)
        }
    }
}
