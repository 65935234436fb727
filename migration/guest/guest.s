# A guest that dirties its memory at a set rate, checks it, and reports on the serial port.
#
# QEMU loads it as a multiboot kernel (-kernel guest.bin). Assembled by
#     as --64 -o guest.o guest.s
#     ld -e 0x100000 -Ttext=0x100000 --oformat binary -o guest.bin guest.o
# A test compares guest.bin with what these print. src/guest.rs writes the parameters into the image
# and reads the reports.
#
# Memory is an array of pages: low_pages of them from 8 MiB on, high_pages from 4 GiB on. Word i of
# page p of generation g is (g << 32 | p) + i * STEP. At the start every page has generation 1.
# Then the first `working` pages are written in turn, with generation 2, then 3, and so on. So
# generation and cursor, which live in registers, tell what every page must hold: a page that
# arrives late, stale, shifted or in the wrong place is found.
#
# Reports: a SYN (0x16, which QEMU's own messages do not contain) at each turn of the main loop,
# each 4 ms while there is time, and each 64 turns a line of six hexadecimal numbers (see `report`).
# Orders: 'v' checks all pages once, as fast as possible.

        .intel_syntax noprefix
        .set    LOW, 0x800              # first page of low memory
        .set    HIGH, 0x100000          # first page of high memory
        .set    TABLES, 0x200000        # page tables: up to 512 GiB in pages of 2 MiB
        .set    IDT, 0x180000
        .set    STACK, 0x1ff000
        .set    STEP, 0x9e3779b97f4a7c15
        .set    PM_TIMER, 0x608         # 3.579545 MHz, 24 bits; SeaBIOS puts it there
        .set    LATE, 357954            # counts of 100 ms: more is not made up for
        .set    CREDIT_MAX, 32768       # pages: more is not made up for
        .set    BATCH, 256              # pages dirtied or checked in a turn
        .set    FULL_BATCH, 1024        # pages checked in a turn of a full check
        .set    COM1, 0x3f8
        .set    SYN, 0x16

        .text
        .code32
header:                                 # Multiboot 1, with addresses
        .long   0x1badb002
        .long   0x00010000
        .long   -(0x1badb002 + 0x00010000)
        .long   header                  # address of this header
        .long   header                  # load address
        .long   end_of_image
        .long   end_of_image            # no bss
        .long   start

parameters:                             # at byte 32 of the image
low_pages:      .quad   0
high_pages:     .quad   0
working:        .quad   0               # pages that are dirtied
dirty_rate:     .quad   0               # pages per count of the PM timer, times 2^32
check_rate:     .quad   0               # the same of checks
mapped:         .quad   0               # GiB of addresses to map

# --- 32 bits: build page tables, enter long mode ------------------------------------------------

start:
        cli
        mov     edi, TABLES
        xor     eax, eax
        mov     ecx, 0x2000 / 4
        rep stosd                       # clears PML4 and PDPT
        mov     dword ptr [TABLES], TABLES + 0x1003
        mov     ecx, [mapped]
        mov     ebx, TABLES + 0x1000
        mov     edx, TABLES + 0x2003
1:      mov     [ebx], edx              # one page directory for each GiB
        add     ebx, 8
        add     edx, 0x1000
        loop    1b
        mov     ecx, [mapped]
        shl     ecx, 9
        mov     edi, TABLES + 0x2000
        mov     eax, 0x83               # present, writable, 2 MiB
        xor     edx, edx
2:      mov     [edi], eax
        mov     [edi + 4], edx
        add     eax, 0x200000
        adc     edx, 0
        add     edi, 8
        loop    2b
        mov     eax, cr4
        or      eax, 0x20               # PAE
        mov     cr4, eax
        mov     eax, TABLES
        mov     cr3, eax
        mov     ecx, 0xc0000080         # EFER
        rdmsr
        or      eax, 0x100              # LME
        wrmsr
        lgdt    [gdt_pointer]
        mov     eax, cr0
        or      eax, 0x80000001         # PG, PE
        mov     cr0, eax
        .byte   0xea                    # jmp 8:long_mode
        .long   long_mode
        .word   8

        .balign 8
gdt:    .quad   0
        .quad   0x00af9a000000ffff      # 8: code, 64 bits
        .quad   0x00cf92000000ffff      # 16: data
gdt_pointer:
        .word   23
        .long   gdt

# --- 64 bits ------------------------------------------------------------------------------------
# r8   last reading of the PM timer     r12  cursor: next page to dirty
# r9   dirty credit, pages times 2^32   r13  next page to check
# r10  check credit, the same           r14  pages checked
# r11  generation being written         r15  pages wrong
# rbp  pages left of a full check       rbx  STEP

        .code64
long_mode:
        mov     eax, 16
        mov     ds, eax
        mov     es, eax
        mov     ss, eax
        mov     rsp, STACK
        mov     rbx, STEP
        call    start_timer

        xor     esi, esi                # every page gets generation 1
1:      mov     eax, 1
        call    write
        inc     rsi
        call    total
        cmp     rsi, rax
        jb      1b

        mov     r11d, 2
        xor     r9d, r9d
        xor     r10d, r10d
        xor     r12d, r12d
        xor     r13d, r13d
        xor     r14d, r14d
        xor     r15d, r15d
        xor     ebp, ebp
        mov     edx, PM_TIMER
        in      eax, dx
        mov     r8d, eax
        call    report
        sti

turn:
        mov     edx, PM_TIMER           # time gives credit
        in      eax, dx
        mov     ecx, eax
        sub     eax, r8d
        mov     r8d, ecx
        and     eax, 0xffffff
        mov     ecx, LATE
        cmp     eax, ecx
        cmova   eax, ecx
        mov     rcx, rax
        imul    rax, [rip + dirty_rate]
        add     r9, rax
        imul    rcx, [rip + check_rate]
        add     r10, rcx
        mov     rax, CREDIT_MAX << 32
        cmp     r9, rax
        cmova   r9, rax
        cmp     r10, rax
        cmova   r10, rax

        mov     edi, BATCH              # credit is spent
1:      mov     rax, r9
        shr     rax, 32
        jz      2f
        push    rdi
        call    dirty
        pop     rdi
        mov     rax, 1 << 32
        sub     r9, rax
        dec     edi
        jnz     1b
2:      mov     edi, BATCH
3:      mov     rax, r10
        shr     rax, 32
        jz      4f
        push    rdi
        call    check_next
        pop     rdi
        mov     rax, 1 << 32
        sub     r10, rax
        dec     edi
        jnz     3b

4:      test    rbp, rbp                # a full check goes on
        jz      6f
        mov     edi, FULL_BATCH
5:      push    rdi
        call    check_next
        pop     rdi
        dec     rbp
        jz      7f
        dec     edi
        jnz     5b
        jmp     6f
7:      inc     qword ptr [rip + full_checks]
        call    report

6:      mov     edx, COM1 + 5           # an order
        in      al, dx
        test    al, 1
        jz      8f
        mov     edx, COM1
        in      al, dx
        cmp     al, 'v'
        jne     8f
        call    total
        mov     rbp, rax
        xor     r13d, r13d

8:      mov     al, SYN
        call    put
        dec     dword ptr [rip + until_report]
        jnz     9f
        mov     dword ptr [rip + until_report], 64
        call    report
9:      mov     rax, r9                 # sleeps until the next tick if nothing is left to do
        or      rax, r10
        shr     rax, 32
        or      rax, rbp
        jnz     turn
        hlt
        jmp     turn

# Pages in all -> rax
total:
        mov     rax, [rip + low_pages]
        add     rax, [rip + high_pages]
        ret

# Address of page rsi -> rdi
address:
        mov     rdi, rsi
        cmp     rsi, [rip + low_pages]
        jb      1f
        sub     rdi, [rip + low_pages]
        add     rdi, HIGH - LOW
1:      add     rdi, LOW
        shl     rdi, 12
        ret

# Writes page rsi with generation rax. Changes rax, rcx, rdi.
write:
        shl     rax, 32
        or      rax, rsi
        call    address
        mov     ecx, 4096 / 32
1:      mov     [rdi], rax
        add     rax, rbx
        mov     [rdi + 8], rax
        add     rax, rbx
        mov     [rdi + 16], rax
        add     rax, rbx
        mov     [rdi + 24], rax
        add     rax, rbx
        add     rdi, 32
        dec     ecx
        jnz     1b
        ret

# Checks page rsi. Changes rax, rcx, rdi.
check:
        mov     eax, 1                  # generation that it must have
        cmp     rsi, [rip + working]
        jae     1f
        mov     rax, r11
        cmp     rsi, r12
        jb      1f
        dec     rax
1:      shl     rax, 32
        or      rax, rsi
        call    address
        inc     r14
        mov     ecx, 4096 / 32
2:      cmp     [rdi], rax
        jne     3f
        add     rax, rbx
        cmp     [rdi + 8], rax
        jne     3f
        add     rax, rbx
        cmp     [rdi + 16], rax
        jne     3f
        add     rax, rbx
        cmp     [rdi + 24], rax
        jne     3f
        add     rax, rbx
        add     rdi, 32
        dec     ecx
        jnz     2b
        ret
3:      test    r15, r15
        jnz     4f
        mov     [rip + first_wrong], rsi
4:      inc     r15
        ret

# Checks page r13 and goes on to the next one.
check_next:
        mov     rsi, r13
        call    check
        inc     r13
        call    total
        cmp     r13, rax
        jb      1f
        xor     r13d, r13d
1:      ret

# Checks the page at the cursor, writes it anew and goes on to the next one.
dirty:
        mov     rsi, r12
        call    check
        mov     rax, r11
        call    write
        inc     r12
        cmp     r12, [rip + working]
        jb      1f
        xor     r12d, r12d
        inc     r11
1:      ret

# Prints: generation, cursor, pages checked, pages wrong, the first wrong page, full checks done.
report:
        mov     al, 10
        call    put
        mov     al, 'R'
        call    put
        mov     rdi, r11
        call    put_number
        mov     rdi, r12
        call    put_number
        mov     rdi, r14
        call    put_number
        mov     rdi, r15
        call    put_number
        mov     rdi, [rip + first_wrong]
        call    put_number
        mov     rdi, [rip + full_checks]
        call    put_number
        mov     al, 10
        # falls through

# Prints al. Changes rax, rdx.
put:
        mov     ah, al
        mov     edx, COM1 + 5
1:      in      al, dx
        test    al, 0x20                # transmitter holding register empty
        jz      1b
        mov     al, ah
        mov     edx, COM1
        out     dx, al
        ret

# Prints a space and rdi in hexadecimal.
put_number:
        mov     al, ' '
        call    put
        mov     ecx, 16
1:      rol     rdi, 4
        mov     eax, edi
        and     eax, 15
        cmp     al, 10
        jb      2f
        add     al, 'a' - '0' - 10
2:      add     al, '0'
        call    put
        dec     ecx
        jnz     1b
        ret

# 250 interrupts per second, from the PIT through the PIC to vector 32.
start_timer:
        mov     edi, IDT
        xor     eax, eax
        mov     ecx, 33 * 16 / 8
        rep stosq
        lea     rax, [rip + tick]
        mov     [IDT + 32 * 16], ax
        mov     word ptr [IDT + 32 * 16 + 2], 8
        mov     byte ptr [IDT + 32 * 16 + 5], 0x8e
        shr     eax, 16
        mov     [IDT + 32 * 16 + 6], ax
        lidt    [idt_pointer]
        mov     al, 0x11                # PIC: vectors from 32 and 40, IRQ 0 alone
        out     0x20, al
        out     0xa0, al
        mov     al, 32
        out     0x21, al
        mov     al, 40
        out     0xa1, al
        mov     al, 4
        out     0x21, al
        mov     al, 2
        out     0xa1, al
        mov     al, 1
        out     0x21, al
        out     0xa1, al
        mov     al, 0xfe
        out     0x21, al
        mov     al, 0xff
        out     0xa1, al
        mov     al, 0x34                # PIT: channel 0, rate generator
        out     0x43, al
        mov     al, 4773 & 0xff
        out     0x40, al
        mov     al, 4773 >> 8
        out     0x40, al
        ret

tick:
        push    rax
        mov     al, 0x20                # end of interrupt
        out     0x20, al
        pop     rax
        iretq

        .balign 8
idt_pointer:
        .word   33 * 16 - 1
        .quad   IDT
        .balign 8
first_wrong:    .quad   0
full_checks:    .quad   0
until_report:   .long   1
end_of_image:
