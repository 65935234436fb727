//! The boundary to C: no unwinding across it, and `errno`.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of an entry point. A panic is a bug of ours; the program gets `failed` and EIO, and the
/// panic's message is on stderr already.
#[inline]
pub(crate) fn guarded<T>(failed: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(_) => {
            set_errno(libc::EIO);
            failed
        }
    }
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

/// For the older verbs, whose errors are both returned and left in `errno`.
pub(crate) fn returned(errno: c_int) -> c_int {
    if errno != 0 {
        set_errno(errno);
    }
    errno
}
