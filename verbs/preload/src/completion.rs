//! Completion channels and completion queues.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use longhaul_abi_defs::{
    __be32, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_GRH, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE,
    IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SEND, IBV_WC_WITH_IMM, IBV_WC_WITH_INV,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc, ibv_wc_imm, ibv_wc_opcode,
    ibv_wc_status,
};
use longhaul_rdma::{AsyncEvent, CqSinks, Engine, EventQueue};
use longhaul_rnic::{Completion, CompletionOp, CqId, Grh, Status};

use crate::device::{self, COMPLETION_VECTORS};
use crate::extended_cq::Iteration;
use crate::guard::{guarded, minus_one, null, returned, set_errno, wait_for_event};
use crate::object::{self, Acknowledgements, Kind};
use crate::trace;

struct Channel {
    engine: Arc<Engine>,
    queue: Arc<EventQueue<u64>>,
    users: AtomicI32,
}

impl Kind for Channel {
    type Public = ibv_comp_channel;
    const MARK: u64 = 0x6c68_6368_616e_6e65;
}

/// The library's part of a completion queue.
pub(crate) struct Queue {
    pub(crate) engine: Arc<Engine>,
    pub(crate) id: CqId,
    context_events: Arc<EventQueue<AsyncEvent>>,
    channel: *mut ibv_comp_channel,
    /// The service level of received datagrams.
    completion_events: Acknowledgements,
    pub(crate) async_events: Acknowledgements,
    /// Of an extended queue.
    pub(crate) iteration: Iteration,
}

impl Kind for Queue {
    /// Every queue has space for the extended interface, which starts like the plain one.
    type Public = ibv_cq_ex;
    const MARK: u64 = 0x6c68_5f63_715f_5f5f;
}

/// The library's part of the completion queue that a program's pointer stands for.
///
/// # Safety
/// As [`object::resolve`].
#[inline]
pub(crate) unsafe fn queue<'a>(cq: *mut ibv_cq) -> Option<&'a Queue> {
    // SAFETY: passed on to the caller.
    unsafe { object::resolve::<Queue>(cq.cast()) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { device::context(context) }) else { return null(libc::EINVAL) };
        match EventQueue::new() {
            Ok(queue) => {
                let public = ibv_comp_channel { context, fd: queue.fd(), refcnt: 0 };
                let engine = Arc::clone(&ours.engine);
                object::create(
                    public,
                    Channel { engine, queue: Arc::new(queue), users: AtomicI32::new(0) },
                )
            }
            Err(error) => null(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { object::resolve::<Channel>(channel) }) else {
            return returned(libc::EINVAL);
        };
        if ours.users.load(Ordering::SeqCst) > 0 {
            return returned(libc::EBUSY);
        }
        // SAFETY: live, unused, and the program destroys it.
        unsafe { object::destroy::<Channel>(channel) };
        0
    })
}

/// Creates a completion queue. The slots of its extended interface are empty.
///
/// # Safety
/// The pointers are null or point to readable memory.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
) -> Result<*mut ibv_cq_ex, c_int> {
    // SAFETY: the program's pointer, checked as far as possible.
    let ours = unsafe { device::context(context) }.ok_or(libc::EINVAL)?;
    if cqe == 0 || comp_vector >= COMPLETION_VECTORS {
        return Err(libc::EINVAL);
    }
    let channel_part = if channel.is_null() {
        None
    } else {
        // SAFETY: as above.
        Some(unsafe { object::resolve::<Channel>(channel) }.ok_or(libc::EINVAL)?)
    };
    // The device's queue needs the object's address to name it in events, and the object needs the
    // queue's number: the queue is created first, without a cookie, and raises no event before it
    // is armed.
    let nameless = CqSinks { channel: None, asynchronous: None, cookie: 0 };
    let id = ours.engine.create_cq(cqe, nameless).map_err(|error| error.errno())?;
    let cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX);
    let public =
        ibv_cq_ex { context, channel, cq_context, handle: id.0, cqe, ..ibv_cq_ex::zeroed() };
    let kind = Queue {
        engine: Arc::clone(&ours.engine),
        id,
        context_events: Arc::clone(&ours.events),
        channel,
        completion_events: Acknowledgements::default(),
        async_events: Acknowledgements::default(),
        iteration: Iteration::default(),
    };
    let cq = object::create(public, kind);
    let sinks = CqSinks {
        channel: channel_part.map(|part| Arc::clone(&part.queue)),
        asynchronous: Some(Arc::clone(&ours.events)),
        cookie: cq as u64,
    };
    ours.engine.set_cq_sinks(id, sinks).map_err(|error| error.errno())?;
    if let Some(part) = channel_part {
        let users = part.users.fetch_add(1, Ordering::SeqCst) + 1;
        // SAFETY: a live channel.
        unsafe { (*channel).refcnt = users };
    }
    Ok(cq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    guarded(ptr::null_mut(), || {
        let (Ok(cqe), Ok(vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
            return null(libc::EINVAL);
        };
        // SAFETY: passed on.
        unsafe { create(context, cqe, cq_context, channel, vector) }
            .map_or_else(null, |cq| cq.cast())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { queue(cq) }) else { return returned(libc::EINVAL) };
        if let Err(error) = ours.engine.destroy_cq(ours.id) {
            return returned(error.errno());
        }
        let cookie = cq as u64;
        ours.context_events.retain(|event| *event != AsyncEvent::CqError { cookie });
        // SAFETY: a channel cannot go while a queue uses it.
        if let Some(channel) = unsafe { object::resolve::<Channel>(ours.channel) } {
            channel.queue.retain(|event| *event != cookie);
            ours.completion_events.settle();
            let users = channel.users.fetch_sub(1, Ordering::SeqCst) - 1;
            // SAFETY: as above.
            unsafe { (*ours.channel).refcnt = users };
        }
        ours.async_events.settle();
        // SAFETY: live, and the program destroys it.
        unsafe { object::destroy::<Queue>(cq.cast()) };
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { queue(cq) }) else { return returned(libc::EINVAL) };
        let Ok(capacity) = u32::try_from(cqe) else { return returned(libc::EINVAL) };
        let resized = ours.engine.with_quietly(|rnic| rnic.resize_cq(ours.id, capacity));
        if let Err(error) = resized.and_then(|done| Ok(done?)) {
            return returned(error.errno());
        }
        // SAFETY: a live queue.
        unsafe { (*cq).cqe = cqe };
        0
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { queue(cq) }) else { return returned(libc::EINVAL) };
        let armed = ours.engine.with(|rnic, _| rnic.arm_cq(ours.id, solicited_only != 0));
        if let Err(error) = armed.and_then(|done| Ok(done?)) {
            return returned(error.errno());
        }
        // A program that requests an event is about to sleep.
        ours.engine.hand_over();
        0
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let prepared = guarded(None, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let ours = unsafe { object::resolve::<Channel>(channel) };
        let Some(ours) = ours.filter(|_| !cq.is_null() && !cq_context.is_null()) else {
            set_errno(libc::EINVAL);
            return None;
        };
        if ours.queue.is_empty() {
            if let Err(error) = ours.engine.turn() {
                set_errno(error.errno());
                return None;
            }
            ours.engine.hand_over();
        }
        Some(ours)
    });
    let Some(ours) = prepared else { return -1 };
    loop {
        // SAFETY: the channel's descriptor.
        if !unsafe { wait_for_event(ours.queue.fd()) } {
            return -1;
        }
        let taken = guarded(Some(-1), || {
            ours.queue.take_counted(|cookie| {
                let found = cookie as *mut ibv_cq;
                // SAFETY: events of destroyed queues are taken out of the channel, so this one is
                // live; and from here on its destruction waits for this event. The caller provides
                // space for both.
                unsafe {
                    if let Some(queue) = queue(found) {
                        queue.completion_events.give();
                    }
                    cq.write(found);
                    cq_context.write((*found).cq_context);
                }
                0
            })
        });
        if let Some(result) = taken {
            return result;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    guarded((), || {
        // SAFETY: the program's pointer, checked as far as possible.
        if let Some(ours) = unsafe { queue(cq) } {
            ours.completion_events.acknowledge(count.into());
        }
    });
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { queue(cq) }) else { return minus_one(libc::EINVAL) };
        if count <= 0 || wc.is_null() {
            return 0;
        }
        let room = count as usize;
        let out = Cell::new(wc);
        let put = |entry| {
            trace::completed(&entry);
            let at = out.get();
            // SAFETY: the caller provides space for `count` entries, and no more are handed out.
            unsafe { at.write(entry) };
            out.set(at.wrapping_add(1));
        };
        let poll =
            |room| ours.engine.poll_cq(ours.id, room, |completion| put(ours.entry(&completion)));
        let polled = if ours.iteration.is_absent() {
            poll(room)
        } else {
            ours.iteration.drain(room, put, |found| match room - found {
                0 => Ok(found),
                room => poll(room).map(|more| found + more),
            })
        };
        match polled {
            Ok(found) => found as c_int,
            Err(error) => minus_one(error.errno()),
        }
    })
}

impl Queue {
    /// The program's form of a completion.
    #[inline]
    pub(crate) fn entry(&self, completion: &Completion) -> ibv_wc {
        let mut imm = ibv_wc_imm { imm_data: __be32::new(0) };
        let mut wc_flags = if completion.grh.is_some() { IBV_WC_GRH } else { 0 };
        if let Some(bytes) = completion.immediate {
            imm.imm_data = __be32::from_memory(u32::from_ne_bytes(bytes));
            wc_flags |= IBV_WC_WITH_IMM;
        }
        if let Some(rkey) = completion.invalidated {
            imm.invalidated_rkey = rkey.0;
            wc_flags |= IBV_WC_WITH_INV;
        }
        ibv_wc {
            wr_id: completion.wr_id,
            status: ibv_wc_status(completion.status as u32),
            opcode: opcode(completion.op),
            // Hardware reports its own code here; this device the status.
            vendor_err: if completion.status == Status::Success {
                0
            } else {
                completion.status as u32
            },
            byte_len: completion.byte_len,
            imm,
            qp_num: completion.qpn.get(),
            src_qp: completion.peer_qpn.get(),
            wc_flags,
            pkey_index: 0,
            slid: 0,
            sl: completion.grh.map_or(0, datagram_sl),
            dlid_path_bits: 0,
        }
    }
}

/// The service level of a received datagram. RoCE has none; the field has the packet's type, as
/// with ConnectX: bit 3 for UDP, and 1 for IPv6 or 2 for IPv4. The header before a datagram does
/// not tell its own version, and UCX drops datagrams if it reads the wrong one.
fn datagram_sl(grh: Grh) -> u8 {
    match grh {
        Grh::V4 => 0b1010,
        Grh::V6 => 0b1001,
    }
}

fn opcode(op: CompletionOp) -> ibv_wc_opcode {
    match op {
        CompletionOp::Send => IBV_WC_SEND,
        CompletionOp::Write => IBV_WC_RDMA_WRITE,
        CompletionOp::Read => IBV_WC_RDMA_READ,
        CompletionOp::CmpSwap => IBV_WC_COMP_SWAP,
        CompletionOp::FetchAdd => IBV_WC_FETCH_ADD,
        CompletionOp::Recv => IBV_WC_RECV,
        CompletionOp::RecvWriteImmediate => IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_rdma::{Attach, attach};
    use longhaul_units::Qpn;

    mod c {
        use std::ffi::{c_int, c_void};

        pub(super) type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

        unsafe extern "C" {
            pub(super) fn pthread_create(
                thread: *mut libc::pthread_t,
                attr: *const libc::pthread_attr_t,
                start: Start,
                argument: *mut c_void,
            ) -> c_int;
            pub(super) fn pthread_cancel(thread: libc::pthread_t) -> c_int;
        }
    }

    unsafe extern "C-unwind" fn wait(channel: *mut c_void) -> *mut c_void {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel that the test made; places for both results.
        unsafe { ibv_get_cq_event(channel.cast(), &raw mut cq, &raw mut context) };
        ptr::null_mut()
    }

    fn engine() -> Arc<Engine> {
        let attach = Attach::from_lookup(|name| match name {
            attach::ENV_SOCKET => Some("/nowhere".to_owned()),
            attach::ENV_IP => Some("10.77.0.1".to_owned()),
            _ => None,
        });
        // SAFETY: no memory is ever registered.
        unsafe { Engine::new(attach.unwrap()) }.unwrap()
    }

    #[test]
    fn only_received_datagrams_have_a_service_level() {
        let queue = Queue {
            engine: engine(),
            id: CqId(0),
            context_events: Arc::new(EventQueue::new().unwrap()),
            channel: ptr::null_mut(),
            completion_events: Acknowledgements::default(),
            async_events: Acknowledgements::default(),
            iteration: Iteration::default(),
        };
        let qpn = Qpn::GSI;
        let mut received = Completion::of(7, Status::Success, CompletionOp::Recv, qpn, qpn);
        assert_eq!(queue.entry(&received).sl, 0);
        received.grh = Some(Grh::V4);
        assert_eq!(queue.entry(&received).sl & 7, 2);
        received.grh = Some(Grh::V6);
        assert_eq!(queue.entry(&received).sl & 7, 1);
    }

    #[test]
    fn a_thread_that_waits_for_an_event_can_be_cancelled() {
        let engine = engine();
        let queue = Arc::new(EventQueue::new().unwrap());
        let public = ibv_comp_channel { context: ptr::null_mut(), fd: queue.fd(), refcnt: 0 };
        let channel = object::create(public, Channel { engine, queue, users: AtomicI32::new(0) });
        // SAFETY: valid places for the results; the channel outlives the thread.
        unsafe {
            let mut thread: libc::pthread_t = 0;
            assert_eq!(c::pthread_create(&raw mut thread, ptr::null(), wait, channel.cast()), 0);
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(c::pthread_cancel(thread), 0);
            let mut result = ptr::null_mut();
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
            // PTHREAD_CANCELED
            assert_eq!(result as isize, -1);
            assert_eq!(ibv_destroy_comp_channel(channel), 0);
        }
    }
}
