//! Macros that declare C types, and record them for the layout test.
//!
//! Each macro expands to the Rust item and, under `cfg(test)`, a function that lists it for the
//! comparison with the C headers. A declared field is therefore always checked.

use core::ffi::{c_char, c_int, c_void};

/// A type that may occur in a C structure or signature.
///
/// # Safety
///
/// The all-zero bit pattern must be a valid value of the type: the `zeroed`
/// constructors rely on it.
pub(crate) unsafe trait CAbi {
    /// True if C initialises the type with braces.
    #[cfg(test)]
    const AGGREGATE: bool = false;

    /// C spelling of the type, which may be followed by a `*`.
    #[cfg(test)]
    fn c_type() -> String;
}

macro_rules! c_primitives {
    ($($rust:ty => $c:literal, $aggregate:literal;)*) => { $(
        // SAFETY: integers, and the libc structures of integers listed here,
        // are valid when all zero. `c_void` and `()` are never held by value.
        unsafe impl CAbi for $rust {
            #[cfg(test)]
            const AGGREGATE: bool = $aggregate;

            #[cfg(test)]
            fn c_type() -> String {
                $c.to_owned()
            }
        }
    )* };
}

c_primitives! {
    () => "void", false;
    c_void => "void", false;
    c_char => "char", false;
    u8 => "uint8_t", false;
    u16 => "uint16_t", false;
    u32 => "uint32_t", false;
    u64 => "uint64_t", false;
    usize => "size_t", false;
    c_int => "int", false;
    libc::pthread_mutex_t => "pthread_mutex_t", true;
    libc::pthread_cond_t => "pthread_cond_t", true;
    libc::timespec => "struct timespec", true;
    libc::sockaddr => "struct sockaddr", true;
    libc::sockaddr_in => "struct sockaddr_in", true;
    libc::sockaddr_in6 => "struct sockaddr_in6", true;
    libc::sockaddr_storage => "struct sockaddr_storage", true;
}

// SAFETY: a null raw pointer is valid.
unsafe impl<T: CAbi> CAbi for *mut T {
    #[cfg(test)]
    fn c_type() -> String {
        format!("__typeof__({} *)", T::c_type())
    }
}

// SAFETY: a null raw pointer is valid.
unsafe impl<T: CAbi> CAbi for *const T {
    #[cfg(test)]
    fn c_type() -> String {
        format!("__typeof__({} const *)", T::c_type())
    }
}

// SAFETY: an array of all-zero elements, each valid by the element's bound.
unsafe impl<T: CAbi, const N: usize> CAbi for [T; N] {
    #[cfg(test)]
    const AGGREGATE: bool = true;

    #[cfg(test)]
    fn c_type() -> String {
        format!("__typeof__({}[{N}])", T::c_type())
    }
}

macro_rules! c_function_pointers {
    ($(($($argument:ident),*))*) => { $(
        // SAFETY: the all-zero value is `None`, by the null pointer optimisation
        // that the language guarantees for `Option` of a function pointer.
        unsafe impl<R: CAbi, $($argument: CAbi),*> CAbi
            for Option<unsafe extern "C" fn($($argument),*) -> R>
        {
            #[cfg(test)]
            fn c_type() -> String {
                let arguments: Vec<String> = vec![$($argument::c_type()),*];
                let arguments = if arguments.is_empty() {
                    "void".to_owned()
                } else {
                    arguments.join(", ")
                };
                format!("__typeof__({} (*)({arguments}))", R::c_type())
            }
        }
    )* };
}

c_function_pointers! {
    ()
    (A)
    (A, B)
    (A, B, C)
    (A, B, C, D)
    (A, B, C, D, E)
}

/// The type of a nullable C function pointer: `cfn!(arguments => result)`.
macro_rules! cfn {
    ($($argument:ty),* $(,)?) => {
        Option<unsafe extern "C" fn($($argument),*)>
    };
    ($($argument:ty),* => $result:ty) => {
        Option<unsafe extern "C" fn($($argument),*) -> $result>
    };
}

/// C spelling of a declared type: the given one, otherwise its tag.
macro_rules! c_spelling {
    ($keyword:ident $name:ident) => {
        concat!(stringify!($keyword), " ", stringify!($name))
    };
    ($keyword:ident $name:ident $c:literal) => {
        $c
    };
}

/// Declares structures: `struct NAME [as "C TYPE"] { field: type [=> anon], }`.
///
/// `=> anon` marks a field that is an anonymous union in C: it has no name
/// there, and its members are checked by [`c_anonymous_unions`].
macro_rules! c_structs {
    ($table:ident; $(
        $(#[$meta:meta])*
        struct $name:ident $(as $c:literal)? {
            $($(#[$field_meta:meta])* $field:ident : $type:ty $(=> $anon:ident)?),* $(,)?
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = ""]
            #[doc = concat!("C: `", c_spelling!(struct $name $($c)?), "`.")]
            #[repr(C)]
            pub struct $name {
                $($(#[$field_meta])* pub $field: $type,)*
            }

            c_aggregate!($name, c_spelling!(struct $name $($c)?), $($type),*);
        )*

        #[cfg(test)]
        pub(crate) fn $table() -> Vec<crate::c_headers::Aggregate> {
            vec![$(crate::c_headers::Aggregate {
                c: c_spelling!(struct $name $($c)?),
                kind: crate::c_headers::AggregateKind::Struct,
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: vec![$(crate::c_headers::Field {
                    name: stringify!($field),
                    offset: core::mem::offset_of!($name, $field),
                    size: size_of::<$type>(),
                    c_type: <$type as crate::macros::CAbi>::c_type(),
                    braced: <$type as crate::macros::CAbi>::AGGREGATE,
                    anonymous: [$(stringify!($anon))?].contains(&"anon"),
                }),*],
            }),*]
        }
    };
}

/// Declares unions that have a tag or a name in C.
macro_rules! c_unions {
    ($table:ident; $(
        $(#[$meta:meta])*
        union $name:ident $(as $c:literal)? {
            $($field:ident : $type:ty),* $(,)?
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = ""]
            #[doc = concat!("C: `", c_spelling!(union $name $($c)?), "`.")]
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub union $name {
                $(pub $field: $type,)*
            }

            c_aggregate!($name, c_spelling!(union $name $($c)?), $($type),*);
        )*

        #[cfg(test)]
        pub(crate) fn $table() -> Vec<crate::c_headers::Aggregate> {
            vec![$(crate::c_headers::Aggregate {
                c: c_spelling!(union $name $($c)?),
                kind: crate::c_headers::AggregateKind::Union,
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: vec![$(crate::c_headers::Field {
                    name: stringify!($field),
                    offset: core::mem::offset_of!($name, $field),
                    size: size_of::<$type>(),
                    c_type: <$type as crate::macros::CAbi>::c_type(),
                    braced: <$type as crate::macros::CAbi>::AGGREGATE,
                    anonymous: false,
                }),*],
            }),*]
        }
    };
}

/// Declares unions that C leaves anonymous: `union NAME in PARENT.field { … }`.
/// C reaches their members as members of the parent.
macro_rules! c_anonymous_unions {
    ($table:ident; $(
        $(#[$meta:meta])*
        union $name:ident in $parent:ident . $place:ident {
            $($field:ident : $type:ty),* $(,)?
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = ""]
            #[doc = concat!("C: an anonymous union in `struct ", stringify!($parent), "`.")]
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub union $name {
                $(pub $field: $type,)*
            }

            // The C spelling is never used: the field that holds the union is
            // marked `anon`.
            c_aggregate!($name, "", $($type),*);
        )*

        #[cfg(test)]
        pub(crate) fn $table() -> Vec<crate::c_headers::Aggregate> {
            vec![$(crate::c_headers::Aggregate {
                c: concat!("struct ", stringify!($parent)),
                kind: crate::c_headers::AggregateKind::Anonymous,
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                fields: vec![$(crate::c_headers::Field {
                    name: stringify!($field),
                    offset: core::mem::offset_of!($parent, $place.$field),
                    size: size_of::<$type>(),
                    c_type: <$type as crate::macros::CAbi>::c_type(),
                    braced: <$type as crate::macros::CAbi>::AGGREGATE,
                    anonymous: false,
                }),*],
            }),*]
        }
    };
}

/// Implementations for every structure and union: `zeroed`, and [`CAbi`].
macro_rules! c_aggregate {
    ($name:ident, $c:expr, $($type:ty),*) => {
        impl $name {
            /// The value whose every byte is zero: null pointers, absent
            /// functions, and the integer 0 everywhere else.
            #[must_use]
            pub const fn zeroed() -> Self {
                const fn valid_when_zero<T: crate::macros::CAbi>() {}
                $(valid_when_zero::<$type>();)*
                // SAFETY: every field's type implements `CAbi` (asserted
                // above), whose contract is that all zeroes is a valid value.
                unsafe { core::mem::zeroed() }
            }
        }

        // SAFETY: `zeroed` asserts that each field may be all zeroes.
        unsafe impl crate::macros::CAbi for $name {
            #[cfg(test)]
            const AGGREGATE: bool = true;

            #[cfg(test)]
            fn c_type() -> String {
                $c.to_owned()
            }
        }
    };
}

/// Declares structures that only occur behind a pointer.
macro_rules! c_opaque {
    ($($(#[$meta:meta])* $name:ident;)*) => { $(
        $(#[$meta])*
        #[doc = ""]
        #[doc = concat!("C: `struct ", stringify!($name), "`, opaque here.")]
        #[repr(C)]
        pub struct $name {
            _opaque: [u8; 0],
        }

        // SAFETY: zero bytes long; never held by value.
        unsafe impl crate::macros::CAbi for $name {
            #[cfg(test)]
            const AGGREGATE: bool = true;

            #[cfg(test)]
            fn c_type() -> String {
                concat!("struct ", stringify!($name)).to_owned()
            }
        }
    )* };
}

/// Declares C enumerations whose values are alternatives, as integer newtypes.
macro_rules! c_enums {
    ($table:ident; $(
        $(#[$meta:meta])*
        enum $name:ident: $repr:ident {
            $($(#[$value_meta:meta])* $constant:ident = $value:literal),* $(,)?
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = ""]
            #[doc = concat!("C: `enum ", stringify!($name), "`. Any value may arrive.")]
            #[repr(transparent)]
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
            pub struct $name(pub $repr);

            $($(#[$value_meta])* pub const $constant: $name = $name($value);)*

            impl $name {
                /// C name of the value; `None` if the headers define none.
                #[must_use]
                pub const fn c_name(self) -> Option<&'static str> {
                    match self {
                        $($constant => Some(stringify!($constant)),)*
                        _ => None,
                    }
                }
            }

            // SAFETY: a transparent wrapper of an integer; zero is valid.
            unsafe impl crate::macros::CAbi for $name {
                #[cfg(test)]
                fn c_type() -> String {
                    concat!("enum ", stringify!($name)).to_owned()
                }
            }
        )*

        #[cfg(test)]
        pub(crate) fn $table() -> Vec<crate::c_headers::Enumeration> {
            vec![$(crate::c_headers::Enumeration {
                name: stringify!($name),
                repr: Some(<$repr as crate::macros::CAbi>::c_type()),
                constants: vec![$(crate::c_headers::Constant {
                    name: stringify!($constant),
                    value: i128::from($constant.0),
                }),*],
            }),*]
        }
    };
}

/// Declares C enumerations whose values are bits, as constants of an alias.
macro_rules! c_flags {
    ($table:ident; $(
        $(#[$meta:meta])*
        enum $name:ident: $repr:ident {
            $($(#[$value_meta:meta])* $constant:ident = $value:expr),* $(,)?
        }
    )*) => {
        $(
            $(#[$meta])*
            #[doc = ""]
            #[doc = concat!("C: bits of `enum ", stringify!($name), "`.")]
            pub type $name = $repr;

            $($(#[$value_meta])* pub const $constant: $name = $value;)*
        )*

        #[cfg(test)]
        pub(crate) fn $table() -> Vec<crate::c_headers::Enumeration> {
            vec![$(crate::c_headers::Enumeration {
                name: stringify!($name),
                repr: None,
                constants: vec![$(crate::c_headers::Constant {
                    name: stringify!($constant),
                    value: i128::from($constant),
                }),*],
            }),*]
        }
    };
}

/// Declares preprocessor constants and members of untagged enumerations.
macro_rules! c_consts {
    ($table:ident; $($(#[$meta:meta])* $constant:ident: $type:ident = $value:expr;)*) => {
        $($(#[$meta])* pub const $constant: $type = $value;)*

        #[cfg(test)]
        pub(crate) fn $table() -> Vec<crate::c_headers::Constant> {
            vec![$(crate::c_headers::Constant {
                name: stringify!($constant),
                value: i128::try_from($constant).expect("constants fit in 128 bits"),
            }),*]
        }
    };
}
