//! The work request builder: `ibv_qp_to_qp_ex` and the `ibv_wr_*` calls.
//!
//! Between `ibv_wr_start` and `ibv_wr_complete` requests are only described, in buffers that the
//! queue pair reuses; inline data is copied there when it is set. Completion posts the whole list
//! under one lock of the engine, or none of it: the first mistake is remembered, all checks precede
//! the first post, and `ibv_wr_complete` returns the error.
//!
//! From start to completion or abortion one thread owns the builder; others wait. Other calls have
//! no effect then.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::sync::OnceLock;

use longhaul_abi_defs::{
    __be32, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV,
    IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, ibv_ah, ibv_data_buf, ibv_qp,
    ibv_qp_cap, ibv_qp_ex, ibv_sge,
};
use longhaul_rdma::{ProcessMemory, errno_of_post};
use longhaul_rnic::{Destination, MESSAGE_MAX, QpKind, Rnic, SendOp, SendWr, Sge};
use longhaul_units::{Instant, LKey, Qpn, RKey};

use crate::address::AddressHandle;
use crate::critical_section::{Entered, Section};
use crate::guard::{guarded, null, returned};
use crate::object;
use crate::queue_pair::{QueuePair, queue_pair};
use crate::trace;

/// Bytes of an atomic's operand, and its alignment.
const ATOMIC_LEN: u64 = 8;

/// The builder of a queue pair, if that was created for it.
#[derive(Default)]
pub(crate) struct WorkBuilder(OnceLock<Box<Builder>>);

struct Builder {
    section: Section,
    limits: Limits,
    draft: UnsafeCell<Draft>,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    datagrams: bool,
    /// Entries of the send queue.
    depth: usize,
    segments_max: usize,
    inline_max: usize,
}

/// The requests since the start.
#[derive(Debug, Default)]
struct Draft {
    /// The errno of the first mistake; 0: none.
    mistake: c_int,
    requests: Vec<Request>,
    segments: Vec<Sge>,
    inline: Vec<u8>,
}

#[derive(Debug)]
struct Request {
    wr_id: u64,
    op: SendOp,
    flags: c_uint,
    data: Data,
    /// A datagram needs an address, which a separate call sets.
    addressed: bool,
}

/// Location of a request's data.
#[derive(Debug)]
enum Data {
    /// In this range of the draft's segments.
    Segments(Range<usize>),
    /// In this range of the draft's inline bytes.
    Inline(Range<usize>),
}

/// Gives a new queue pair with the granted capacities a builder, if the program requested one.
///
/// # Safety
/// `qp` is a queue pair that was just created and that nobody else knows.
pub(crate) unsafe fn equip(qp: *mut ibv_qp_ex, cap: &ibv_qp_cap) {
    // SAFETY: the caller's promise.
    let Some(ours) = (unsafe { object::resolve::<QueuePair>(qp) }) else { return };
    let Some(ops) = ours.send_ops else { return };
    let limits = Limits {
        datagrams: ours.kind == QpKind::Ud,
        depth: cap.max_send_wr as usize,
        segments_max: cap.max_send_sge as usize,
        inline_max: cap.max_inline_data as usize,
    };
    let draft = UnsafeCell::new(Draft::default());
    ours.work_builder
        .0
        .get_or_init(|| Box::new(Builder { section: Section::new(), limits, draft }));
    // SAFETY: the caller's promise.
    fill_slots(unsafe { &mut *qp }, limits.datagrams, ops);
}

/// Fills the slots that programs call. Operations that were not requested have none.
fn fill_slots(qp: &mut ibv_qp_ex, datagrams: bool, ops: u64) {
    let wanted = |flag: u64| ops & flag != 0;
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_ud_addr = datagrams.then_some(wr_set_ud_addr);
    qp.wr_send = wanted(IBV_QP_EX_WITH_SEND).then_some(wr_send);
    qp.wr_send_imm = wanted(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm);
    qp.wr_send_inv = wanted(IBV_QP_EX_WITH_SEND_WITH_INV).then_some(wr_send_inv);
    qp.wr_rdma_write = wanted(IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write);
    qp.wr_rdma_write_imm = wanted(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm);
    qp.wr_rdma_read = wanted(IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read);
    qp.wr_atomic_cmp_swp = wanted(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add =
        wanted(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(wr_atomic_fetch_add);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the program's pointer, checked as far as possible.
    guarded(std::ptr::null_mut(), || match unsafe { queue_pair(qp) } {
        Some(ours) if ours.work_builder.0.get().is_some() => qp.cast(),
        Some(_) => null(libc::EOPNOTSUPP),
        None => null(libc::EINVAL),
    })
}

impl Draft {
    fn clear(&mut self) {
        self.mistake = 0;
        self.requests.clear();
        self.segments.clear();
        self.inline.clear();
    }

    fn fail(&mut self, errno: c_int) {
        if self.mistake == 0 {
            self.mistake = errno;
        }
    }

    /// Starts a request.
    #[inline]
    fn push(&mut self, limits: &Limits, (wr_id, flags): (u64, c_uint), op: SendOp) {
        if self.requests.len() >= limits.depth {
            return self.fail(libc::ENOMEM);
        }
        self.requests.push(Request {
            wr_id,
            op,
            flags,
            data: Data::Segments(0..0),
            addressed: false,
        });
    }

    /// Sets the data of the latest request, which `set` appends to the buffers; replaces earlier
    /// data.
    #[inline]
    fn attach(&mut self, set: impl FnOnce(&mut Vec<Sge>, &mut Vec<u8>) -> Result<Data, c_int>) {
        // After a mistake the buffers must not grow.
        if self.mistake != 0 {
            return;
        }
        let Some(request) = self.requests.last_mut() else { return self.fail(libc::EINVAL) };
        match &request.data {
            Data::Segments(range) => {
                self.segments.truncate(if range.is_empty() { usize::MAX } else { range.start })
            }
            Data::Inline(range) => self.inline.truncate(range.start),
        }
        match set(&mut self.segments, &mut self.inline) {
            Ok(data) => request.data = data,
            Err(errno) => self.fail(errno),
        }
    }

    /// Calls `with` with a request in the device's form.
    #[inline]
    fn as_posted<R>(&self, request: &Request, with: impl FnOnce(&SendWr<'_>) -> R) -> R {
        let copied;
        let (segments, inline) = match &request.data {
            Data::Segments(range) => (&self.segments[range.clone()], false),
            Data::Inline(range) => {
                let bytes = &self.inline[range.clone()];
                copied = [Sge {
                    address: bytes.as_ptr() as u64,
                    len: bytes.len() as u32,
                    lkey: LKey(0),
                }];
                (&copied[..], true)
            }
        };
        with(&SendWr {
            wr_id: request.wr_id,
            op: request.op,
            segments,
            inline,
            signaled: request.flags & IBV_SEND_SIGNALED != 0,
            solicited: request.flags & IBV_SEND_SOLICITED != 0,
            fence: request.flags & IBV_SEND_FENCE != 0,
        })
    }

    /// Checks whether the device would refuse a request that follows others.
    fn check(&self, request: &Request) -> Result<(), c_int> {
        let (len, inline) = match &request.data {
            Data::Segments(range) => (
                self.segments[range.clone()].iter().map(|segment| u64::from(segment.len)).sum(),
                false,
            ),
            Data::Inline(range) => (range.len() as u64, true),
        };
        let possible = match request.op {
            SendOp::Datagram { .. } => request.addressed,
            SendOp::Send { .. } | SendOp::Write { .. } => true,
            SendOp::Read { .. } => !inline,
            SendOp::CmpSwap { remote_address, .. } | SendOp::FetchAdd { remote_address, .. } => {
                !inline && len >= ATOMIC_LEN && remote_address % ATOMIC_LEN == 0
            }
        };
        if possible && len <= MESSAGE_MAX { Ok(()) } else { Err(libc::EINVAL) }
    }

    /// Posts all requests or none.
    fn post(&self, rnic: &mut Rnic<ProcessMemory>, now: Instant, qpn: Qpn) -> Result<(), c_int> {
        for request in &self.requests {
            self.check(request)?;
        }
        if self.requests.len() > 1 {
            self.check_queue(rnic, qpn)?;
        }
        for request in &self.requests {
            self.as_posted(request, |wr| {
                rnic.post_send(now, qpn, wr).inspect(|()| trace::posted(wr))
            })
            .map_err(|error| errno_of_post(&error))?;
        }
        Ok(())
    }

    /// Checks that the queue has space for all requests, if it accepts the first.
    fn check_queue(&self, rnic: &Rnic<ProcessMemory>, qpn: Qpn) -> Result<(), c_int> {
        let awaits_response = |request: &Request| {
            matches!(
                request.op,
                SendOp::Read { .. } | SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. }
            )
        };
        if self.requests.iter().any(awaits_response) {
            let info = rnic.query_qp(qpn).map_err(|_| libc::EINVAL)?;
            if info.attr.max_rd_atomic.unwrap_or(0) == 0 {
                return Err(libc::EINVAL);
            }
        }
        let room = rnic.send_room(qpn).map_err(|error| errno_of_post(&error))?;
        if self.requests.len() > room as usize { Err(libc::ENOMEM) } else { Ok(()) }
    }
}

/// Runs `change` on the program's draft; no effect outside of start and completion.
///
/// # Safety
/// As [`object::resolve`]; only one thread at a time describes requests.
#[inline]
unsafe fn describe(qp: *mut ibv_qp_ex, change: impl FnOnce(&Limits, &mut Draft)) {
    guarded((), || {
        // SAFETY: passed on to the caller.
        let Some(ours) = (unsafe { object::resolve::<QueuePair>(qp) }) else { return };
        let Some(builder) = ours.work_builder.0.get().filter(|builder| builder.section.is_held())
        else {
            return;
        };
        // SAFETY: the thread that started has the draft.
        change(&builder.limits, unsafe { &mut *builder.draft.get() });
    });
}

/// Starts a request with the members that the program has set.
///
/// # Safety
/// As [`describe`].
#[inline]
unsafe fn begin(qp: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: passed on to the caller; the members of a live queue pair are the program's to set.
    unsafe {
        describe(qp, |limits, draft| draft.push(limits, ((*qp).wr_id, (*qp).wr_flags), op));
    }
}

/// Starts a SEND, which on a datagram queue pair is a datagram.
///
/// # Safety
/// As [`describe`].
#[inline]
unsafe fn begin_send(qp: *mut ibv_qp_ex, immediate: Option<[u8; 4]>) {
    // SAFETY: as in `begin`.
    unsafe {
        describe(qp, |limits, draft| {
            let op = if limits.datagrams {
                SendOp::Datagram { destination: Destination::default(), immediate }
            } else {
                SendOp::Send { immediate, invalidate: None }
            };
            draft.push(limits, ((*qp).wr_id, (*qp).wr_flags), op);
        });
    }
}

fn immediate_bytes(imm: __be32) -> [u8; 4] {
    imm.memory().to_ne_bytes()
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    guarded((), || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { object::resolve::<QueuePair>(qp) }) else { return };
        let Some(builder) = ours.work_builder.0.get() else { return };
        // In the child of a fork, a thread that does not exist there may hold the section.
        if !ours.engine.is_ours() {
            return;
        }
        let entered = builder.section.enter();
        // SAFETY: the section is held by this thread.
        let draft = unsafe { &mut *builder.draft.get() };
        draft.clear();
        if entered == Entered::Already {
            // Started and never completed: the draft is lost, and `ibv_wr_complete` reports that.
            draft.fail(libc::EINVAL);
        }
    });
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { object::resolve::<QueuePair>(qp) }) else {
            return returned(libc::EINVAL);
        };
        if !ours.engine.is_ours() {
            return returned(libc::EIO);
        }
        let Some(builder) = ours.work_builder.0.get().filter(|builder| builder.section.is_held())
        else {
            return returned(libc::EINVAL);
        };
        // SAFETY: the thread that started has the draft.
        let draft = unsafe { &mut *builder.draft.get() };
        let result = if draft.mistake != 0 {
            Err(draft.mistake)
        } else if draft.requests.is_empty() {
            Ok(())
        } else {
            ours.engine
                .with(|rnic, now| draft.post(rnic, now, ours.qpn))
                .unwrap_or_else(|error| Err(error.errno()))
        };
        builder.section.leave();
        result.map_or_else(returned, |()| 0)
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    guarded((), || {
        // SAFETY: the program's pointer, checked as far as possible.
        let ours = unsafe { object::resolve::<QueuePair>(qp) };
        if let Some(builder) = ours.and_then(|ours| ours.work_builder.0.get()) {
            // The next start clears the draft.
            builder.section.leave();
        }
    });
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the program has started.
    unsafe { begin_send(qp, None) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm: __be32) {
    // SAFETY: the program has started.
    unsafe { begin_send(qp, Some(immediate_bytes(imm))) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the program has started.
    unsafe { begin(qp, SendOp::Send { immediate: None, invalidate: Some(RKey(rkey)) }) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_address: u64) {
    // SAFETY: the program has started.
    unsafe { begin(qp, SendOp::Write { remote_address, rkey: RKey(rkey), immediate: None }) };
}

unsafe extern "C" fn wr_rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_address: u64,
    imm: __be32,
) {
    let immediate = Some(immediate_bytes(imm));
    // SAFETY: the program has started.
    unsafe { begin(qp, SendOp::Write { remote_address, rkey: RKey(rkey), immediate }) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_address: u64) {
    // SAFETY: the program has started.
    unsafe { begin(qp, SendOp::Read { remote_address, rkey: RKey(rkey) }) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_address: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: the program has started.
    unsafe { begin(qp, SendOp::CmpSwap { remote_address, rkey: RKey(rkey), compare, swap }) };
}

unsafe extern "C" fn wr_atomic_fetch_add(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_address: u64,
    add: u64,
) {
    // SAFETY: the program has started.
    unsafe { begin(qp, SendOp::FetchAdd { remote_address, rkey: RKey(rkey), add }) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the program has started; its handle is checked as far as possible.
    unsafe {
        describe(qp, |_, draft| {
            let (handle, request) =
                (object::resolve::<AddressHandle>(ah), draft.requests.last_mut());
            match (handle, request) {
                (
                    Some(handle),
                    Some(Request { op: SendOp::Datagram { destination, .. }, addressed, .. }),
                ) if qpn <= Qpn::MAX => {
                    *destination = Destination { ah: handle.id, qpn: Qpn::new(qpn), qkey };
                    *addressed = true;
                }
                _ => draft.fail(libc::EINVAL),
            }
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, address: u64, len: u32) {
    // SAFETY: the program has started.
    unsafe {
        describe(qp, |_, draft| {
            draft.attach(|segments, _| {
                segments.push(Sge { address, len, lkey: LKey(lkey) });
                Ok(Data::Segments(segments.len() - 1..segments.len()))
            });
        });
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the program has started, and gives a list of so many elements.
    unsafe {
        describe(qp, |limits, draft| {
            draft.attach(|segments, _| {
                if count > limits.segments_max || (count > 0 && list.is_null()) {
                    return Err(libc::EINVAL);
                }
                let first = segments.len();
                segments.extend((0..count).map(|index| {
                    let from = &*list.add(index);
                    Sge { address: from.addr, len: from.length, lkey: LKey(from.lkey) }
                }));
                Ok(Data::Segments(first..segments.len()))
            });
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, len: usize) {
    let piece = ibv_data_buf { addr: address, length: len };
    // SAFETY: the program has started, and gives so many readable bytes.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const piece) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the program has started, and gives a list of so many pieces of readable bytes.
    unsafe {
        describe(qp, |limits, draft| {
            draft.attach(|_, inline| {
                if count > 0 && list.is_null() {
                    return Err(libc::EINVAL);
                }
                let first = inline.len();
                for index in 0..count {
                    let piece = &*list.add(index);
                    if piece.length > limits.inline_max - (inline.len() - first) {
                        return Err(libc::EINVAL);
                    }
                    if piece.length > 0 {
                        if piece.addr.is_null() {
                            return Err(libc::EINVAL);
                        }
                        let begin = inline.len();
                        inline.resize(begin + piece.length, 0);
                        // Peers may be writing to registered memory.
                        ProcessMemory::new().load(piece.addr as u64, &mut inline[begin..]);
                    }
                }
                Ok(Data::Inline(first..inline.len()))
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that holds no object of this library, and is larger than any.
    #[repr(C, align(64))]
    struct Foreign([u8; 4096]);

    #[test]
    fn pointers_that_are_no_queue_pairs_are_refused() {
        let mut foreign = Foreign([0x5a; 4096]);
        let middle = (&raw mut foreign.0).cast::<u8>().wrapping_add(2048);
        for qp in [std::ptr::null_mut(), middle.cast::<ibv_qp_ex>()] {
            // SAFETY: null, or in the middle of readable memory.
            unsafe {
                wr_start(qp);
                wr_send(qp);
                wr_set_inline_data(qp, std::ptr::null_mut(), 8);
                assert_eq!(wr_complete(qp), libc::EINVAL);
                wr_abort(qp);
                assert!(ibv_qp_to_qp_ex(qp.cast()).is_null());
            }
        }
        assert_eq!(foreign.0, [0x5a; 4096]);
    }

    mod draft {
        use super::*;

        const LIMITS: Limits =
            Limits { datagrams: false, depth: 2, segments_max: 4, inline_max: 64 };
        const SEND: SendOp = SendOp::Send { immediate: None, invalidate: None };

        fn one_segment(segments: &mut Vec<Sge>, _inline: &mut Vec<u8>) -> Result<Data, c_int> {
            segments.push(Sge { address: 0x1000, len: 8, lkey: LKey(1) });
            Ok(Data::Segments(segments.len() - 1..segments.len()))
        }

        fn eight_bytes(_segments: &mut Vec<Sge>, inline: &mut Vec<u8>) -> Result<Data, c_int> {
            inline.extend([7; 8]);
            Ok(Data::Inline(inline.len() - 8..inline.len()))
        }

        #[test]
        fn does_not_grow_when_data_is_set_again_and_again() {
            let mut draft = Draft::default();
            draft.push(&LIMITS, (1, 0), SEND);
            for _ in 0..100 {
                draft.attach(one_segment);
                draft.attach(eight_bytes);
            }
            assert_eq!((draft.mistake, draft.segments.len(), draft.inline.len()), (0, 0, 8));
            draft.as_posted(&draft.requests[0], |wr| assert!(wr.inline && wr.segments[0].len == 8));
        }

        #[test]
        fn remembers_the_first_mistake_and_stops_growing() {
            let mut draft = Draft::default();
            draft.attach(one_segment);
            for _ in 0..10 {
                draft.push(&LIMITS, (1, 0), SEND);
                draft.attach(one_segment);
            }
            assert_eq!(
                (draft.mistake, draft.requests.len(), draft.segments.len()),
                (libc::EINVAL, 2, 0)
            );
        }

        #[test]
        fn is_empty_when_cleared() {
            let mut draft = Draft::default();
            draft.push(&LIMITS, (1, 0), SEND);
            draft.attach(eight_bytes);
            draft.fail(libc::EINVAL);
            draft.clear();
            assert_eq!((draft.mistake, draft.requests.len(), draft.inline.len()), (0, 0, 0));
        }
    }
}
