//! Compares every declaration of this crate with the installed C headers.
//!
//! Two C translation units are generated from the macros' records. The first prints sizes,
//! alignments, offsets, type compatibility and constants, which are compared as a whole. The second
//! must compile without warnings: it fails if a structure has a member, or an enumeration a value,
//! that Rust does not declare.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Kind of a recorded type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AggregateKind {
    Struct,
    Union,
    /// A union that C leaves anonymous: its members are those of the parent, and it has no separate
    /// size or alignment.
    Anonymous,
}

/// A declared structure or union.
pub(crate) struct Aggregate {
    /// The C type, or for [`AggregateKind::Anonymous`] that of the parent.
    pub c: &'static str,
    pub kind: AggregateKind,
    pub size: usize,
    pub align: usize,
    pub fields: Vec<Field>,
}

/// A member of an [`Aggregate`].
pub(crate) struct Field {
    pub name: &'static str,
    pub offset: usize,
    pub size: usize,
    pub c_type: String,
    /// Whether C initialises it with braces.
    pub braced: bool,
    /// Whether C gives it no name.
    pub anonymous: bool,
}

/// A declared enumeration.
pub(crate) struct Enumeration {
    pub name: &'static str,
    /// The integer type that must represent it, where it occurs in layouts.
    pub repr: Option<String>,
    pub constants: Vec<Constant>,
}

/// A declared constant.
pub(crate) struct Constant {
    pub name: &'static str,
    pub value: i128,
}

struct Declarations {
    aggregates: Vec<Aggregate>,
    enumerations: Vec<Enumeration>,
    constants: Vec<Constant>,
}

fn declarations() -> Declarations {
    use crate::{rdmacm, sa, verbs, verbs_consts, verbs_device, verbs_ops};
    Declarations {
        aggregates: [
            verbs_device::device_structs(),
            verbs_device::device_unions(),
            verbs::verbs_structs(),
            verbs::verbs_unions(),
            verbs::verbs_anonymous_unions(),
            verbs_ops::verbs_ops_structs(),
            sa::sa_structs(),
            rdmacm::rdmacm_structs(),
            rdmacm::rdmacm_unions(),
            rdmacm::rdmacm_anonymous_unions(),
        ]
        .into_iter()
        .flatten()
        .collect(),
        enumerations: [
            verbs_consts::verbs_enums(),
            verbs_consts::verbs_flags(),
            rdmacm::rdmacm_enums(),
            rdmacm::rdmacm_flags(),
        ]
        .into_iter()
        .flatten()
        .collect(),
        constants: [verbs_consts::verbs_consts(), sa::sa_consts(), rdmacm::rdmacm_consts()]
            .into_iter()
            .flatten()
            .collect(),
    }
}

const PREAMBLE: &str = "\
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <infiniband/verbs.h>
#include <infiniband/sa.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
";

const PACKAGES: &str = "this test needs a C compiler named `cc` and the headers of libibverbs and \
     librdmacm (Debian packages: gcc libibverbs-dev librdmacm-dev)";

/// A field's name in C: raw identifiers lose their prefix.
fn c_name(name: &str) -> &str {
    name.strip_prefix("r#").unwrap_or(name)
}

/// Rust's facts, one line each, by key.
fn expected(declarations: &Declarations) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut fact = |key: String, value: String| {
        let clash = facts.insert(key.clone(), value);
        assert!(clash.is_none(), "declared twice: {key}");
    };
    for aggregate in &declarations.aggregates {
        let c = aggregate.c;
        if aggregate.kind != AggregateKind::Anonymous {
            fact(format!("size of {c}"), aggregate.size.to_string());
            fact(format!("alignment of {c}"), aggregate.align.to_string());
        }
        for field in aggregate.fields.iter().filter(|field| !field.anonymous) {
            let name = c_name(field.name);
            fact(format!("offset of {c} {name}"), field.offset.to_string());
            fact(format!("size of {c} {name}"), field.size.to_string());
            fact(format!("type of {c} {name}"), field.c_type.clone());
        }
    }
    for enumeration in &declarations.enumerations {
        if let Some(repr) = &enumeration.repr {
            fact(format!("type of enum {}", enumeration.name), repr.clone());
        }
        for constant in &enumeration.constants {
            fact(constant.name.to_owned(), constant.value.to_string());
        }
    }
    for constant in &declarations.constants {
        fact(constant.name.to_owned(), constant.value.to_string());
    }
    facts
}

/// A program that prints C's facts in the same form.
fn value_program(declarations: &Declarations) -> String {
    let mut body = String::new();
    // The key is an argument of the format, since it may contain any character.
    let mut number = |key: &str, expression: &str| {
        writeln!(body, "  number(\"{key}\", {expression});").expect("writing to a string");
    };
    let mut types = String::new();
    let mut c_type = |key: &str, actual: &str, declared: &str| {
        writeln!(
            types,
            "  printf(\"%s\\t%s\\n\", \"{key}\", \
             __builtin_types_compatible_p({actual}, {declared}) ? \"{declared}\" : \"another\");"
        )
        .expect("writing to a string");
    };
    for aggregate in &declarations.aggregates {
        let c = aggregate.c;
        if aggregate.kind != AggregateKind::Anonymous {
            number(&format!("size of {c}"), &format!("sizeof({c})"));
            number(&format!("alignment of {c}"), &format!("_Alignof({c})"));
        }
        for field in aggregate.fields.iter().filter(|field| !field.anonymous) {
            let name = c_name(field.name);
            let member = format!("(({c} *)0)->{name}");
            number(&format!("offset of {c} {name}"), &format!("offsetof({c}, {name})"));
            number(&format!("size of {c} {name}"), &format!("sizeof({member})"));
            c_type(&format!("type of {c} {name}"), &format!("__typeof__({member})"), &field.c_type);
        }
    }
    for enumeration in &declarations.enumerations {
        let name = enumeration.name;
        if let Some(repr) = &enumeration.repr {
            c_type(&format!("type of enum {name}"), &format!("enum {name}"), repr);
        }
        for constant in &enumeration.constants {
            number(constant.name, constant.name);
        }
    }
    for constant in &declarations.constants {
        number(constant.name, constant.name);
    }
    format!(
        "{PREAMBLE}\
         #define number(key, value) printf(\"%s\\t%s%llu\\n\", key, \\\n\
         \x20 (value) < 0 ? \"-\" : \"\", \\\n\
         \x20 (value) < 0 ? -(unsigned long long)(value) : (unsigned long long)(value))\n\
         int main(void) {{\n{body}{types}  return 0;\n}}\n"
    )
}

/// A C initialiser of one field. Not plain 0, because compilers accept `{ 0 }` for a whole
/// structure, and then do not report missing members.
fn initialiser(field: &Field) -> &'static str {
    if field.braced || field.anonymous {
        "{0}"
    } else if field.c_type.contains('*') {
        "(void *)1"
    } else {
        "1"
    }
}

/// A unit that compiles without warnings only if nothing is missing.
fn completeness_unit(declarations: &Declarations) -> String {
    let mut unit = PREAMBLE.to_owned();
    for (i, aggregate) in declarations.aggregates.iter().enumerate() {
        if aggregate.kind != AggregateKind::Struct {
            continue;
        }
        let values: Vec<&str> = aggregate.fields.iter().map(initialiser).collect();
        writeln!(unit, "{} members_of_{i} = {{ {} }};", aggregate.c, values.join(", "))
            .expect("writing to a string");
    }
    for enumeration in &declarations.enumerations {
        let name = enumeration.name;
        writeln!(unit, "void values_of_{name}(enum {name} value);").expect("writing to a string");
        writeln!(unit, "void values_of_{name}(enum {name} value) {{ switch (value) {{")
            .expect("writing to a string");
        for constant in &enumeration.constants {
            write!(unit, " case {}:", constant.name).expect("writing to a string");
        }
        writeln!(unit, " break; }} }}").expect("writing to a string");
    }
    unit
}

/// A directory that is removed when the test ends, in any way.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("longhaul-abi-defs-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover directory is harmless, and must not hide a test result.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `cc`; the error is its diagnostics.
fn compile(source: &str, arguments: &[&str], scratch: &Scratch) -> Result<PathBuf, String> {
    let input = scratch.0.join("unit.c");
    let output = scratch.0.join("unit.out");
    std::fs::write(&input, source).expect("writing the C source");
    let result = Command::new("cc")
        .args(["-std=gnu11", "-O0"])
        .args(arguments)
        .arg("-o")
        .arg(&output)
        .arg(&input)
        .output()
        .unwrap_or_else(|error| panic!("running cc: {error}; {PACKAGES}"));
    if result.status.success() {
        Ok(output)
    } else {
        Err(String::from_utf8_lossy(&result.stderr).into_owned())
    }
}

/// C's facts.
fn actual(declarations: &Declarations) -> BTreeMap<String, String> {
    let scratch = Scratch::new();
    let program = compile(&value_program(declarations), &[], &scratch)
        .unwrap_or_else(|diagnostics| panic!("{PACKAGES}; cc says:\n{diagnostics}"));
    let result = Command::new(program).output().expect("running the compiled program");
    assert!(result.status.success(), "the program failed");
    String::from_utf8(result.stdout)
        .expect("the program prints ASCII")
        .lines()
        .map(|line| {
            let (key, value) = line.split_once('\t').expect("a key, a tab, a value");
            (key.to_owned(), value.to_owned())
        })
        .collect()
}

/// The facts on which Rust and C differ, for people.
fn differences(declarations: &Declarations) -> Vec<String> {
    let rust = expected(declarations);
    let c = actual(declarations);
    assert_eq!(
        rust.keys().collect::<Vec<_>>(),
        c.keys().collect::<Vec<_>>(),
        "both sides answer the same questions"
    );
    rust.iter()
        .filter(|(key, value)| c[*key] != **value)
        .map(|(key, value)| format!("{key}: Rust {value}, C {}", c[key]))
        .collect()
}

fn completeness(declarations: &Declarations) -> Result<(), String> {
    compile(
        &completeness_unit(declarations),
        &["-c", "-Werror", "-Wmissing-field-initializers", "-Wswitch-enum"],
        &Scratch::new(),
    )
    .map(|_| ())
}

mod every_declaration {
    use super::*;

    #[test]
    fn equals_the_installed_headers() {
        let declarations = declarations();
        let differences = differences(&declarations);
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }

    #[test]
    fn leaves_out_no_member_and_no_enumerator() {
        if let Err(diagnostics) = completeness(&declarations()) {
            panic!("something is left out, or: {PACKAGES}; cc says:\n{diagnostics}");
        }
    }

    #[test]
    fn covers_what_a_provider_needs() {
        // Checks the tables themselves, since an empty one would agree with C.
        let declarations = declarations();
        let size = |c: &str| {
            declarations
                .aggregates
                .iter()
                .find(|aggregate| aggregate.c == c && aggregate.kind != AggregateKind::Anonymous)
                .unwrap_or_else(|| panic!("{c} is recorded"))
                .size
        };
        assert_eq!(size("struct ibv_device"), 664);
        assert_eq!(size("struct ibv_context"), 328);
        assert_eq!(size("struct verbs_context"), 648);
        assert_eq!(size("struct ibv_qp"), 160);
        assert_eq!(size("struct ibv_qp_ex"), 352);
        assert_eq!(size("struct ibv_cq"), 128);
        assert_eq!(size("struct ibv_cq_ex"), 288);
        assert_eq!(size("struct ibv_send_wr"), 128);
        assert_eq!(size("struct ibv_wc"), 48);
        assert_eq!(size("struct rdma_cm_id"), 416);
        assert_eq!(size("struct rdma_cm_event"), 80);
        assert!(declarations.enumerations.len() >= 40);
        assert!(declarations.constants.len() >= 40);
        assert!(expected(&declarations).len() >= 1500);
    }
}

mod the_comparison {
    use super::*;

    fn pd(fields: &[(&'static str, usize, usize, &str)]) -> Declarations {
        Declarations {
            aggregates: vec![Aggregate {
                c: "struct ibv_pd",
                kind: AggregateKind::Struct,
                size: 16,
                align: 8,
                fields: fields
                    .iter()
                    .map(|&(name, offset, size, c_type)| Field {
                        name,
                        offset,
                        size,
                        c_type: c_type.to_owned(),
                        braced: false,
                        anonymous: false,
                    })
                    .collect(),
            }],
            enumerations: vec![],
            constants: vec![],
        }
    }

    fn atomic_cap(constants: &[(&'static str, i128)]) -> Declarations {
        Declarations {
            aggregates: vec![],
            enumerations: vec![Enumeration {
                name: "ibv_atomic_cap",
                repr: Some("int".to_owned()),
                constants: constants
                    .iter()
                    .map(|&(name, value)| Constant { name, value })
                    .collect(),
            }],
            constants: vec![],
        }
    }

    #[test]
    fn names_a_wrong_offset_size_and_type() {
        let wrong =
            pd(&[("context", 0, 8, "__typeof__(struct ibv_cq *)"), ("handle", 12, 2, "uint32_t")]);
        assert_eq!(
            differences(&wrong),
            [
                "offset of struct ibv_pd handle: Rust 12, C 8",
                "size of struct ibv_pd handle: Rust 2, C 4",
                "type of struct ibv_pd context: Rust __typeof__(struct ibv_cq *), C another",
            ]
        );
    }

    #[test]
    fn names_a_wrong_constant_and_representation() {
        let wrong = atomic_cap(&[("IBV_ATOMIC_NONE", 0), ("IBV_ATOMIC_HCA", 7)]);
        assert_eq!(
            differences(&wrong),
            ["IBV_ATOMIC_HCA: Rust 7, C 1", "type of enum ibv_atomic_cap: Rust int, C another",]
        );
    }

    #[test]
    fn notices_a_missing_member() {
        let short = pd(&[("context", 0, 8, "__typeof__(struct ibv_context *)")]);
        let diagnostics = completeness(&short).expect_err("`handle` is missing");
        assert!(diagnostics.contains("handle"), "{diagnostics}");
    }

    #[test]
    fn notices_a_missing_enumerator() {
        let short = atomic_cap(&[("IBV_ATOMIC_NONE", 0), ("IBV_ATOMIC_HCA", 1)]);
        let diagnostics = completeness(&short).expect_err("`IBV_ATOMIC_GLOB` is missing");
        assert!(diagnostics.contains("IBV_ATOMIC_GLOB"), "{diagnostics}");
    }

    #[test]
    #[should_panic(expected = "gcc libibverbs-dev librdmacm-dev")]
    fn fails_where_a_type_or_header_is_absent() {
        let mut absent = pd(&[]);
        absent.aggregates[0].c = "struct ibv_that_no_header_declares";
        differences(&absent);
    }
}

mod the_legacy_port_attributes {
    use core::mem::offset_of;

    use crate::{_compat_ibv_port_attr, ibv_port_attr};

    #[test]
    fn are_the_port_attributes_up_to_the_second_capability_mask() {
        macro_rules! same_offset {
            ($($field:ident)*) => { $(
                assert_eq!(
                    offset_of!(_compat_ibv_port_attr, $field),
                    offset_of!(ibv_port_attr, $field),
                    stringify!($field)
                );
            )* };
        }
        same_offset! {
            state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr
            qkey_viol_cntr pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout
            init_type_reply active_width active_speed phys_state link_layer flags
        }
        assert_eq!(size_of::<_compat_ibv_port_attr>(), offset_of!(ibv_port_attr, port_cap_flags2));
    }
}

mod an_extended_context {
    use crate::{VERBS_ABI_IS_EXTENDED, verbs_context, verbs_get_ctx};

    #[test]
    fn is_found_from_the_context_inside_it() {
        let mut table = verbs_context::zeroed();
        table.context.abi_compat = VERBS_ABI_IS_EXTENDED;
        let table: *mut verbs_context = &raw mut table;
        // SAFETY: the context is inside a live `verbs_context`, and the pointer
        // derives from one to the whole.
        let found = unsafe { verbs_get_ctx(&raw mut (*table).context) };
        assert_eq!(found, table);
    }

    #[test]
    fn is_denied_without_the_marker() {
        let mut table = verbs_context::zeroed();
        // SAFETY: the context is live.
        let found = unsafe { verbs_get_ctx(&raw mut table.context) };
        assert!(found.is_null());
    }
}

mod an_enumeration_value {
    use crate::{IBV_QPT_UD, ibv_qp_type};

    #[test]
    fn has_its_c_name_if_the_headers_know_it() {
        assert_eq!(IBV_QPT_UD.c_name(), Some("IBV_QPT_UD"));
        assert_eq!(ibv_qp_type(77).c_name(), None);
    }
}
