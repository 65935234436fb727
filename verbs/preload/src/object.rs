//! Objects handed out to C: a public part that the program reads, and ours behind it.
//!
//! The program gives back pointers to the public part. Each object carries a mark, so that a null pointer,
//! a pointer to something else and, mostly, a pointer to a destroyed object are refused rather than used.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Our part of an object of one kind.
pub(crate) trait Kind: Sized {
    /// What the program sees.
    type Public;
    /// Marks live objects of this kind.
    const MARK: u64;
}

#[repr(C)]
struct Object<K: Kind> {
    public: UnsafeCell<K::Public>,
    mark: AtomicU64,
    kind: K,
}

/// Makes an object; the program owns it until it calls the destroying function.
pub(crate) fn create<K: Kind>(public: K::Public, kind: K) -> *mut K::Public {
    let object = Box::new(Object { public: UnsafeCell::new(public), mark: AtomicU64::new(K::MARK), kind });
    Box::into_raw(object).cast()
}

/// Our part of the object that `public` points to; `None` for what is no live object of this kind.
///
/// # Safety
/// A pointer that is not null and is aligned must point to memory that can be read; it must not be
/// destroyed by another thread during `'a`.
#[inline]
pub(crate) unsafe fn resolve<'a, K: Kind>(public: *mut K::Public) -> Option<&'a K> {
    let object = public.cast::<Object<K>>();
    if object.is_null() || !object.is_aligned() {
        return None;
    }
    // SAFETY: the caller vouches for readable memory; only the mark is looked at before it is known to be
    // an object of ours.
    unsafe {
        if (*object).mark.load(Ordering::Relaxed) != K::MARK {
            return None;
        }
        Some(&(*object).kind)
    }
}

/// Takes an object back from the program and drops it.
///
/// # Safety
/// As [`resolve`], and nobody uses the object any more.
pub(crate) unsafe fn destroy<K: Kind>(public: *mut K::Public) {
    // SAFETY: the caller vouches for the pointer; objects come from `create` alone, hence from a box.
    unsafe {
        if resolve::<K>(public).is_some() {
            let object = public.cast::<Object<K>>();
            (*object).mark.store(0, Ordering::Relaxed);
            drop(Box::from_raw(object));
        }
    }
}

/// Events that a program has been given and those that it has acknowledged: an object may only go when the
/// two are equal, and whoever destroys it waits for that.
#[derive(Default)]
pub(crate) struct Acknowledgements {
    given: AtomicU64,
    acknowledged: Mutex<u64>,
    changed: Condvar,
}

impl Acknowledgements {
    pub(crate) fn give(&self) {
        self.given.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn acknowledge(&self, count: u64) {
        let mut acknowledged = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        *acknowledged += count;
        self.changed.notify_all();
    }

    /// Blocks until everything given has been acknowledged.
    pub(crate) fn settle(&self) {
        let mut acknowledged = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        while *acknowledged < self.given.load(Ordering::SeqCst) {
            acknowledged = self.changed.wait(acknowledged).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Red(u8);
    impl Kind for Red {
        type Public = u32;
        const MARK: u64 = 0x7265_6421;
    }
    struct Blue;
    impl Kind for Blue {
        type Public = u32;
        const MARK: u64 = 0x626c_7565;
    }

    #[test]
    fn an_object_is_found_by_its_public_part_and_only_as_its_own_kind() {
        let public = create(7, Red(42));
        // SAFETY: `public` is live.
        unsafe {
            assert_eq!(*public, 7);
            assert_eq!(resolve::<Red>(public).map(|red| red.0), Some(42));
            assert!(resolve::<Blue>(public).is_none());
            assert!(resolve::<Red>(std::ptr::null_mut()).is_none());
            assert!(resolve::<Red>(public.byte_add(1)).is_none());
            destroy::<Red>(public);
        }
    }

    #[test]
    fn settling_waits_for_every_acknowledgement() {
        let acks = std::sync::Arc::new(Acknowledgements::default());
        acks.give();
        acks.give();
        acks.acknowledge(1);
        let settled = {
            let acks = std::sync::Arc::clone(&acks);
            std::thread::spawn(move || acks.settle())
        };
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!settled.is_finished());
        acks.acknowledge(1);
        settled.join().unwrap();
    }
}
