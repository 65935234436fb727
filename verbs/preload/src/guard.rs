//! The boundary to C: stops panics, and sets `errno`.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::trace;

/// Runs the body of an entry point. After a panic, which is a bug and is reported on stderr, the
/// program gets `failed` and EIO. Traces the call.
#[inline]
pub(crate) fn guarded<T>(failed: T, body: impl FnOnce() -> T) -> T {
    let call = trace::begin(std::any::type_name_of_val(&body));
    let result = catch_unwind(AssertUnwindSafe(body));
    trace::end(call);
    match result {
        Ok(result) => result,
        Err(_) => {
            set_errno(libc::EIO);
            failed
        }
    }
}

/// Waits for a descriptor of an event queue, and decrements its count. `false` with `errno` set on
/// error, including `EAGAIN` if the program made the descriptor non-blocking.
///
/// A program may cancel (`pthread_cancel`) a thread that waits here. The C library then unwinds the
/// stack, and must meet neither a catch nor a destructor: entry points that wait do so outside of
/// [`guarded`], and hold nothing then that needs dropping.
///
/// # Safety
/// `fd` is an eventfd that stays open.
pub(crate) unsafe extern "C-unwind" fn wait_for_event(fd: c_int) -> bool {
    unsafe extern "C-unwind" {
        fn read(fd: c_int, buffer: *mut u64, len: usize) -> isize;
    }
    let mut count = 0_u64;
    // SAFETY: eight writable bytes.
    unsafe { read(fd, &raw mut count, size_of::<u64>()) >= 0 }
}

/// Sleeps until a signal or the timeout. It may be cancelled like [`wait_for_event`].
pub(crate) extern "C-unwind" fn pause(milliseconds: c_int) {
    unsafe extern "C-unwind" {
        fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, milliseconds: c_int) -> c_int;
    }
    // SAFETY: no descriptors.
    unsafe { poll(std::ptr::null_mut(), 0, milliseconds) };
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the location belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// For functions that return null and set `errno`.
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    std::ptr::null_mut()
}

/// For functions that return -1 and set `errno`.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// For the older verbs, which both return errors and store them in `errno`.
pub(crate) fn returned(errno: c_int) -> c_int {
    if errno != 0 {
        set_errno(errno);
    }
    errno
}
