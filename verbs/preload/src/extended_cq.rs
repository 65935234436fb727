//! Extended completion queues: `ibv_create_cq_ex`, its iterator, and completion timestamps.
//!
//! The iterator takes up to [`BATCH`] completions from the device at a time, under one lock, and
//! keeps those that the program has not reached. They are older than any that the device still
//! holds, so both the iterator and `ibv_poll_cq` return them first. A queue is armed in the device:
//! an event means that a completion arrived after the arming. Kept completions arrived before it,
//! so the program must poll for them, as with hardware.
//!
//! From a successful start to the end of polling, one thread owns the queue; others wait.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_abi_defs::{
    __be32, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD,
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_VALUES_MASK_RAW_CLOCK, IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_DLID_PATH_BITS,
    IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL, IBV_WC_EX_WITH_SLID,
    IBV_WC_EX_WITH_SRC_QP, IBV_WC_STANDARD_FLAGS, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_poll_cq_attr, ibv_values_ex, ibv_wc, ibv_wc_opcode,
};
use longhaul_rdma::Engine;

use crate::completion::{self, Queue};
use crate::critical_section::{Entered, Section};
use crate::device;
use crate::domain::Domain;
use crate::guard::{guarded, null, returned};
use crate::object;
use crate::trace;

/// Frequency of the clock of completion timestamps and [`query_rt_values`], in kHz: a tick is a
/// nanosecond.
pub(crate) const CLOCK_KHZ: u64 = 1_000_000;
/// Significant bits of a timestamp: all.
pub(crate) const TIMESTAMP_MASK: u64 = u64::MAX;

/// Completions taken from the device at a time.
const BATCH: usize = 16;
/// Fields that `wc_flags` may request. The others are for raw packets and tag matching.
const READABLE: u64 = IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Iterator state of a completion queue; only extended queues have one.
#[derive(Default)]
pub(crate) struct Iteration(OnceLock<Box<Cursor>>);

struct Cursor {
    engine: Arc<Engine>,
    section: Section,
    wallclock: bool,
    batch: UnsafeCell<Batch>,
}

/// Completions taken from the device, oldest first.
struct Batch {
    taken: [Taken; BATCH],
    /// The program's current completion.
    current: usize,
    /// The first one that the program has not reached.
    next: usize,
    len: usize,
}

#[derive(Clone, Copy)]
struct Taken {
    wc: ibv_wc,
    /// Time when the device queued it, in ticks of its clock.
    ticks: u64,
    /// The same, in nanoseconds since 1970; 0 unless the program requested it.
    wallclock_ns: u64,
}

impl Batch {
    /// Removes the completions of a queue pair that the program has not reached.
    fn forget(&mut self, qp_num: u32) {
        let mut kept = self.next;
        for index in self.next..self.len {
            if self.taken[index].wc.qp_num != qp_num {
                self.taken[kept] = self.taken[index];
                kept += 1;
            }
        }
        self.len = kept;
    }

    fn new() -> Self {
        Batch {
            taken: [Taken { wc: ibv_wc::zeroed(), ticks: 0, wallclock_ns: 0 }; BATCH],
            current: 0,
            next: 0,
            len: 0,
        }
    }

    /// Takes completions from the device if none is left. `false` if the device has none either.
    fn refill(&mut self, queue: &Queue, wallclock: bool, drives: bool) -> Result<bool, c_int> {
        if self.next < self.len {
            return Ok(true);
        }
        let mut found = 0;
        let taken = &mut self.taken;
        let keep = |completion: longhaul_rnic::Completion| {
            let ticks = completion.timestamp.as_ns();
            taken[found] = Taken { wc: queue.entry(&completion), ticks, wallclock_ns: 0 };
            found += 1;
        };
        let polled = if drives {
            queue.engine.poll_cq(queue.id, BATCH, keep)
        } else {
            queue.engine.with_quietly(|rnic| rnic.poll_cq(queue.id, BATCH, keep))
        };
        if let Err(error) = polled {
            return Err(error.errno());
        }
        if found == 0 {
            // The current completion stays readable.
            return Ok(false);
        }
        if wallclock {
            let to_wallclock = wallclock_ns().wrapping_sub(queue.engine.now().as_ns());
            for one in &mut self.taken[..found] {
                one.wallclock_ns = one.ticks.wrapping_add(to_wallclock);
            }
        }
        (self.next, self.len) = (0, found);
        Ok(true)
    }

    fn current(&self) -> &Taken {
        &self.taken[self.current % BATCH]
    }
}

fn wallclock_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

impl Iteration {
    /// True if only the device has completions of the queue.
    #[inline]
    pub(crate) fn is_absent(&self) -> bool {
        self.0.get().is_none()
    }

    /// Returns completions that the iterator has taken and the program has not reached, at most
    /// `room`, oldest first, then calls `rest` with their number to take the device's. No thread
    /// iterates meanwhile.
    pub(crate) fn drain<R>(
        &self,
        room: usize,
        mut take: impl FnMut(ibv_wc),
        rest: impl FnOnce(usize) -> R,
    ) -> R {
        // In the child of a fork, a thread that does not exist there may hold the section.
        let Some(cursor) = self.0.get().filter(|cursor| cursor.engine.is_ours()) else {
            return rest(0);
        };
        // A thread that polls during its own iteration continues after its current completion.
        let entered = cursor.section.enter();
        // SAFETY: the section is held, by this call or by the iteration around it on this thread.
        let batch = unsafe { &mut *cursor.batch.get() };
        let end = batch.len.min(batch.next.saturating_add(room));
        let found = end - batch.next;
        for one in &batch.taken[batch.next..end] {
            take(one.wc);
        }
        batch.next = end;
        let result = rest(found);
        if entered == Entered::Now {
            cursor.section.leave();
        }
        result
    }

    /// Removes the completions of a queue pair that is reset or destroyed. No other thread iterates
    /// meanwhile.
    pub(crate) fn forget(&self, qp_num: u32) {
        let Some(cursor) = self.0.get().filter(|cursor| cursor.engine.is_ours()) else { return };
        let entered = cursor.section.enter();
        // SAFETY: the section is held, by this call or by the iteration around it on this thread.
        unsafe { &mut *cursor.batch.get() }.forget(qp_num);
        if entered == Entered::Now {
            cursor.section.leave();
        }
    }
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: passed on.
    guarded(std::ptr::null_mut(), || unsafe { create(context, attr) }.unwrap_or_else(null))
}

unsafe fn create(
    context: *mut ibv_context,
    attr: *const ibv_cq_init_attr_ex,
) -> Result<*mut ibv_cq_ex, c_int> {
    const MASKS: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    // Neither has an effect: the engine has its own lock, and a program that promises never to
    // overrun the queue need not be protected.
    const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    if attr.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the program's structure. Older programs pass less of it, so that no reference to it
    // is made; comp_mask says which of the last members are there.
    let (comp_mask, wc_flags) = unsafe { ((*attr).comp_mask, (*attr).wc_flags) };
    if comp_mask & !MASKS != 0 || wc_flags & !READABLE != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: as above.
    if comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 && unsafe { (*attr).flags } & !FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 {
        // SAFETY: as above, and the program's pointer is checked as far as possible.
        unsafe { object::resolve::<Domain>((*attr).parent_domain) }.ok_or(libc::EINVAL)?;
    }
    // SAFETY: passed on.
    let cq = unsafe {
        let (cqe, vector) = ((*attr).cqe, (*attr).comp_vector);
        completion::create(context, cqe, (*attr).cq_context, (*attr).channel, vector)?
    };
    // SAFETY: just created; nobody else knows it.
    unsafe {
        fill_slots(&mut *cq, wc_flags);
        if let Some(queue) = object::resolve::<Queue>(cq) {
            let wallclock = wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK != 0;
            let batch = UnsafeCell::new(Batch::new());
            let (engine, section) = (Arc::clone(&queue.engine), Section::new());
            queue
                .iteration
                .0
                .get_or_init(|| Box::new(Cursor { engine, section, wallclock, batch }));
        }
    }
    Ok(cq)
}

/// Fills the slots that programs call. Fields that were not requested have none.
fn fill_slots(cq: &mut ibv_cq_ex, wc_flags: u64) {
    let wanted = |flag: u64| wc_flags & flag != 0;
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_byte_len = wanted(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
    cq.read_imm_data = wanted(IBV_WC_EX_WITH_IMM).then_some(read_imm_data);
    cq.read_qp_num = wanted(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num);
    cq.read_src_qp = wanted(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp);
    cq.read_slid = wanted(IBV_WC_EX_WITH_SLID).then_some(read_slid);
    cq.read_sl = wanted(IBV_WC_EX_WITH_SL).then_some(read_sl);
    cq.read_dlid_path_bits = wanted(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
    cq.read_completion_ts =
        wanted(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts);
    cq.read_completion_wallclock_ns = wanted(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        .then_some(read_completion_wallclock_ns);
}

/// The queue and its cursor, for a pointer to an extended queue.
///
/// # Safety
/// As [`object::resolve`].
#[inline]
unsafe fn parts<'a>(cq: *mut ibv_cq_ex) -> Option<(&'a Queue, &'a Cursor)> {
    // SAFETY: passed on to the caller.
    let queue = unsafe { object::resolve::<Queue>(cq) }?;
    Some((queue, queue.iteration.0.get()?))
}

/// Moves to the next completion: 0, ENOENT if there is none, or another errno.
///
/// # Safety
/// `cq` is a live extended queue with these parts, and its section is held.
#[inline]
unsafe fn advance(cq: *mut ibv_cq_ex, queue: &Queue, cursor: &Cursor, drives: bool) -> c_int {
    // SAFETY: the holder of the section owns the batch.
    let batch = unsafe { &mut *cursor.batch.get() };
    match batch.refill(queue, cursor.wallclock, drives) {
        Ok(true) => {}
        Ok(false) => return libc::ENOENT,
        Err(errno) => return errno,
    }
    batch.current = batch.next;
    batch.next += 1;
    let current = batch.current();
    trace::completed(&current.wc);
    // SAFETY: a live queue; the program reads these between the calls of its iteration.
    unsafe {
        (*cq).status = current.wc.status;
        (*cq).wr_id = current.wc.wr_id;
    }
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some((queue, cursor)), attr) = (unsafe { (parts(cq), attr.as_ref()) }) else {
            return libc::EINVAL;
        };
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return libc::EINVAL;
        }
        // In the child of a fork, a thread that does not exist there may hold the section.
        if !queue.engine.is_ours() {
            return libc::EIO;
        }
        if cursor.section.enter() == Entered::Already {
            // Already started.
            return libc::EINVAL;
        }
        // SAFETY: live, and the section is held.
        let result = unsafe { advance(cq, queue, cursor, true) };
        if result != 0 {
            cursor.section.leave();
        }
        result
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some((queue, cursor)) = (unsafe { parts(cq) }) else { return libc::EINVAL };
        if !cursor.section.is_held() {
            // Not started.
            return libc::EINVAL;
        }
        // SAFETY: live, and the section is held, for the program to iterate.
        unsafe { advance(cq, queue, cursor, false) }
    })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    guarded((), || {
        // SAFETY: the program's pointer, checked as far as possible.
        if let Some((_, cursor)) = unsafe { parts(cq) } {
            cursor.section.leave();
        }
    });
}

/// Reads a field of the current completion.
///
/// # Safety
/// As [`object::resolve`]; only the iterating thread may call this.
#[inline]
unsafe fn read<R>(cq: *mut ibv_cq_ex, nothing: R, of: impl FnOnce(&Taken) -> R) -> R {
    // SAFETY: passed on to the caller; the program reads during its iteration, when nobody else
    // changes the batch.
    match unsafe { parts(cq) } {
        // SAFETY: as above.
        Some((_, cursor)) => of(unsafe { (*cursor.batch.get()).current() }),
        None => nothing,
    }
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: the program iterates.
    unsafe { read(cq, ibv_wc_opcode(0), |taken| taken.wc.opcode) }
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program iterates.
    unsafe { read(cq, 0, |taken| taken.wc.vendor_err) }
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program iterates.
    unsafe { read(cq, 0, |taken| taken.wc.byte_len) }
}

/// Immediate data, or the invalidated key: `ibv_wc_read_invalidated_rkey` calls this too.
unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> __be32 {
    // SAFETY: the program iterates; both members are plain 32-bit integers, and one of them was
    // written.
    unsafe { read(cq, __be32::new(0), |taken| taken.wc.imm.imm_data) }
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program iterates.
    unsafe { read(cq, 0, |taken| taken.wc.qp_num) }
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program iterates.
    unsafe { read(cq, 0, |taken| taken.wc.src_qp) }
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: the program iterates.
    unsafe { read(cq, 0, |taken| taken.wc.wc_flags) }
}

unsafe extern "C" fn read_slid(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: the program iterates.
    unsafe { read(cq, 0, |taken| taken.wc.slid.into()) }
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the program iterates.
    unsafe { read(cq, 0, |taken| taken.wc.sl) }
}

unsafe extern "C" fn read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the program iterates.
    unsafe { read(cq, 0, |taken| taken.wc.dlid_path_bits) }
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program iterates.
    unsafe { read(cq, 0, |taken| taken.ticks) }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the program iterates.
    unsafe { read(cq, 0, |taken| taken.wallclock_ns) }
}

/// The device's clock in the format of hardware drivers: all ticks in the member for nanoseconds,
/// whatever the length of a tick.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some(ours), Some(values)) = (unsafe { (device::context(context), values.as_mut()) })
        else {
            return returned(libc::EINVAL);
        };
        values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
        if values.comp_mask != 0 {
            values.raw_clock =
                libc::timespec { tv_sec: 0, tv_nsec: ticks(&ours.engine) as libc::c_long };
        }
        0
    })
}

fn ticks(engine: &Engine) -> u64 {
    engine.now().as_ns()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that holds no object of this library, and is larger than any.
    #[repr(C, align(64))]
    struct Foreign([u8; 4096]);

    #[test]
    fn a_batch_forgets_what_a_queue_pair_completed_behind_the_current_one() {
        let mut batch = Batch::new();
        for (index, qp_num) in [5, 5, 6, 5, 7].into_iter().enumerate() {
            batch.taken[index].wc.qp_num = qp_num;
            batch.taken[index].wc.wr_id = index as u64;
        }
        (batch.current, batch.next, batch.len) = (0, 1, 5);
        batch.forget(5);
        let left: Vec<_> =
            batch.taken[batch.next..batch.len].iter().map(|one| one.wc.wr_id).collect();
        assert_eq!((left, batch.current().wc.wr_id), (vec![2, 4], 0));
    }

    #[test]
    fn pointers_that_are_no_queues_are_refused() {
        let mut foreign = Foreign([0x5a; 4096]);
        let middle = (&raw mut foreign.0).cast::<u8>().wrapping_add(2048);
        for cq in [std::ptr::null_mut(), middle.cast::<ibv_cq_ex>()] {
            let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
            // SAFETY: null, or in the middle of readable memory.
            unsafe {
                assert_eq!(start_poll(cq, &raw mut attr), libc::EINVAL);
                assert_eq!(next_poll(cq), libc::EINVAL);
                end_poll(cq);
                assert_eq!((read_byte_len(cq), read_completion_ts(cq)), (0, 0));
                assert_eq!(query_rt_values(cq.cast(), std::ptr::null_mut()), libc::EINVAL);
                assert!(create_cq_ex(cq.cast(), std::ptr::null_mut()).is_null());
            }
        }
        assert_eq!(foreign.0, [0x5a; 4096]);
    }
}
