import sys
from pathlib import Path
import pytest
def test_a(kernel):
    for line in Path('/tmp/cells.txt').read_text().split('=====\n'):
        c = kernel.run(line)
        print('>>>>', line, end=''); print('  ', c.status, 'RES', c.results, 'OUT', repr(c.stdout), 'ERR', repr(c.stderr), 'NREP', len(c.reports), 'NDISP', len(c.displays)); print(c.traceback)
        for r in c.reports: print('R:', r['text/plain'].splitlines()[0])
        if c.pages: print(c.pages)
