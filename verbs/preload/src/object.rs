//! Objects handed out to C: a public part that the program reads, followed by the library's part.
//!
//! The program passes pointers to the public part back. Each object carries a mark, so that null
//! pointers, pointers to other memory and pointers to destroyed objects are refused. The memory of
//! recently destroyed objects is kept for a while, because destroying an object twice is the most
//! common mistake.

use std::alloc::{Layout, dealloc};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) use longhaul_rdma::Acknowledgements;

/// Maximum number of destroyed objects whose memory is kept, a few hundred bytes each.
const GRAVES: usize = 1024;

/// The library's part of an object of one kind.
pub(crate) trait Kind: Sized {
    /// The program's part.
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

/// Creates an object; the program owns it until it calls the destroying function.
pub(crate) fn create<K: Kind>(public: K::Public, kind: K) -> *mut K::Public {
    let object =
        Box::new(Object { public: UnsafeCell::new(public), mark: AtomicU64::new(K::MARK), kind });
    Box::into_raw(object).cast()
}

/// The library's part of the object that `public` points to; `None` if that is not a live object of
/// this kind.
///
/// # Safety
/// A non-null, aligned pointer must point to readable memory, and no other thread may destroy the
/// object during `'a`.
#[inline]
pub(crate) unsafe fn resolve<'a, K: Kind>(public: *mut K::Public) -> Option<&'a K> {
    let object = public.cast::<Object<K>>();
    if object.is_null() || !object.is_aligned() {
        return None;
    }
    // SAFETY: the caller guarantees readable memory; only the mark is read before the object is
    // known to be this library's.
    unsafe {
        if (*object).mark.load(Ordering::Relaxed) != K::MARK {
            return None;
        }
        Some(&(*object).kind)
    }
}

/// Drops the library's part of an object that the program destroys.
///
/// # Safety
/// As [`resolve`], and nobody uses the object any more.
pub(crate) unsafe fn destroy<K: Kind>(public: *mut K::Public) {
    let object = public.cast::<Object<K>>();
    if object.is_null() || !object.is_aligned() {
        return;
    }
    // SAFETY: the caller guarantees readable memory. Only the thread that removes the mark drops
    // the object.
    unsafe {
        if (*object).mark.compare_exchange(K::MARK, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            std::ptr::drop_in_place(&raw mut (*object).kind);
            bury(object.cast(), Layout::new::<Object<K>>());
        }
    }
}

/// Frees the memory of a destroyed object later.
///
/// # Safety
/// `memory` was allocated with `layout`, and nobody owns it.
unsafe fn bury(memory: *mut u8, layout: Layout) {
    static GRAVEYARD: Mutex<VecDeque<(usize, Layout)>> = Mutex::new(VecDeque::new());
    // In the child of a fork, another thread of the parent may hold the lock for ever.
    let oldest = match GRAVEYARD.try_lock() {
        Ok(mut graves) => {
            graves.push_back((memory as usize, layout));
            if graves.len() > GRAVES { graves.pop_front() } else { None }
        }
        Err(_) => Some((memory as usize, layout)),
    };
    if let Some((memory, layout)) = oldest {
        // SAFETY: only this function frees what it was given, once.
        unsafe { dealloc(memory as *mut u8, layout) };
    }
}

/// Number of users of an object, which cannot be destroyed before they are.
#[derive(Default)]
pub(crate) struct Users(Arc<AtomicU32>);

impl Users {
    /// Adds a user, until the returned value is dropped.
    pub(crate) fn join(&self) -> User {
        self.0.fetch_add(1, Ordering::SeqCst);
        User(Arc::clone(&self.0))
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A user of an object.
pub(crate) struct User(Arc<AtomicU32>);

impl Drop for User {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
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
    fn a_destroyed_object_is_refused_and_its_second_destruction_changes_nothing() {
        let public = create(7, Red(42));
        // SAFETY: the memory of objects destroyed just now can be read.
        unsafe {
            destroy::<Red>(public);
            assert!(resolve::<Red>(public).is_none());
            destroy::<Red>(public);
        }
    }

    #[test]
    fn users_are_counted_until_they_are_dropped() {
        let users = Users::default();
        let (one, two) = (users.join(), users.join());
        assert_eq!(users.count(), 2);
        drop(one);
        assert_eq!(users.count(), 1);
        drop(two);
        assert_eq!(users.count(), 0);
    }
}
