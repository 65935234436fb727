//! Compiles the shim against the installed libdpdk and links it; does nothing without the feature
//! `libdpdk`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "libdpdk")]
    shim();
}

#[cfg(feature = "libdpdk")]
fn shim() {
    for file in ["src/shim.c", "src/shim.h"] {
        println!("cargo::rerun-if-changed={file}");
    }
    // Probed first but linked last, because the shim needs it.
    let found =
        pkg_config::Config::new().atleast_version("22.11").cargo_metadata(false).probe("libdpdk");
    let libdpdk = found
        .unwrap_or_else(|error| panic!("{error}\nDPDK is missing: apt-get install libdpdk-dev"));
    let mut build = cc::Build::new();
    build
        .file("src/shim.c")
        .includes(&libdpdk.include_paths)
        .opt_level(3)
        .warnings(true)
        .extra_warnings(true);
    // DPDK's headers assume at least its minimum processor.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        build.flag("-march=corei7");
    }
    build.compile("longhaul_dpdk_shim");
    for path in &libdpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib={library}");
    }
}

/// Libraries that the shim calls, of the sixty that pkg-config names; DPDK loads the others as
/// drivers at start.
#[cfg(feature = "libdpdk")]
const LIBRARIES: [&str; 4] = ["rte_ethdev", "rte_mbuf", "rte_mempool", "rte_eal"];
