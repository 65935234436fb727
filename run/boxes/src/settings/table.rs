//! Settings as tables with one row per key.

use super::{Far, Peer, Psk, WanRate};
use crate::carrier::Carrier;
use crate::cores::Cores;
use crate::fibre::Ecn;
use crate::quantity::{Distance, Size};
use longhaul_accel::{EceMode, Mode, Prefix};
use longhaul_host::placement::CoreList;
use longhaul_link::{Change, Rule};
use longhaul_readahead::Protocol;
use longhaul_units::{BitRate, Duration};
use std::path::PathBuf;

/// A key of settings `S`. The attributes of its row hold its flag and help.
pub struct Key<S> {
    /// Name in files.
    pub(crate) name: &'static str,
    /// Type of its value in files.
    pub(crate) form: &'static str,
    /// Keys that are set together with this one, including it: giving any of them sets all.
    pub(crate) given_with: &'static [&'static str],
    /// When the key can change in a running box.
    pub(crate) changes: Changes,
    /// Compares two settings in this key.
    pub(crate) is_same: fn(&S, &S) -> bool,
    /// The value, for comparison with that of another process.
    pub(crate) text: fn(&S) -> String,
    /// Sets the first from the third, unless the second (of higher precedence) has a value.
    pub(crate) fill: fn(&mut S, &S, &S),
}

/// When a key can change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changes {
    /// While the box runs.
    Live,
    /// While the box runs, unless it has a transport, which is sized for its path.
    LiveWithoutTransport,
    /// With a restart.
    Restart,
}

/// Settings that have a table.
pub trait Table: Sized + 'static {
    /// One row per key, in the order of the fields.
    const KEYS: &'static [Key<Self>];
}

/// The value of a key: given or omitted.
pub trait Value {
    /// Type of the value in files.
    const FORM: &'static str;

    /// True if a value is given.
    fn is_given(&self) -> bool;
}

/// The form of a single value in files.
pub trait Written {
    /// Type of one value.
    const ONE: &'static str;
}

macro_rules! written {
    ($($form:literal: $($type:ty),*;)*) => {
        $($(impl Written for $type { const ONE: &'static str = $form; })*)*
    };
}

written! {
    "string": BitRate, Distance, Size, Duration, Mode, EceMode, WanRate, Ecn, Carrier, PathBuf;
    "string": Peer, Psk, Prefix, Far, Protocol, Rule, Change;
    "integer": u8, u32, u64;
    "number": f64;
    "integer or string": CoreList;
}

impl<T: Written> Value for Option<T> {
    const FORM: &'static str = T::ONE;

    fn is_given(&self) -> bool {
        self.is_some()
    }
}

impl<T: Written> Value for Vec<T> {
    const FORM: &'static str = "list of strings";

    fn is_given(&self) -> bool {
        !self.is_empty()
    }
}

impl Value for Option<Vec<longhaul_accel::Rule>> {
    const FORM: &'static str = "[[policy]] tables";

    fn is_given(&self) -> bool {
        self.is_some()
    }
}

impl Value for bool {
    const FORM: &'static str = "boolean";

    fn is_given(&self) -> bool {
        *self
    }
}

impl Cores {
    pub(crate) fn new(list: &Option<CoreList>, numa: Option<u32>) -> Self {
        Cores { list: list.clone(), numa }
    }
}

/// Declares settings with a row per key:
///
/// ```text
/// /// Help
/// #[arg(…)]                 its flag
/// #[serde(…)]               its form in a file, where it is not serde's own
/// key: Type => Live;        when it can change
/// key: Type => Live, given with other;      whoever gives either has given both
/// ```
macro_rules! settings {
    (
        $(#[$of_all:meta])*
        pub struct $name:ident {
            $(
                $(#[$of_key:meta])*
                $key:ident: $type:ty => $changes:ident $(, given with $other:ident)?;
            )*
        }
    ) => {
        $(#[$of_all])*
        pub struct $name {
            $($(#[$of_key])* $key: $type,)*
        }

        impl $crate::settings::table::Table for $name {
            const KEYS: &'static [$crate::settings::table::Key<Self>] = &[
                $($crate::settings::table::Key {
                    name: stringify!($key),
                    form: <$type as $crate::settings::table::Value>::FORM,
                    given_with: &[stringify!($key) $(, stringify!($other))?],
                    changes: $crate::settings::table::Changes::$changes,
                    is_same: |one, other| one.$key == other.$key,
                    text: |of| format!("{:?}", of.$key),
                    fill: |to, above, below| {
                        use $crate::settings::table::Value;
                        let is_given = Value::is_given(&above.$key)
                            $(|| Value::is_given(&above.$other))?;
                        if !is_given {
                            to.$key = below.$key.clone();
                        }
                    },
                },)*
            ];
        }
    };
}

pub(crate) use settings;
